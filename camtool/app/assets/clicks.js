// Clicks on buttons inside of a piece of HTML: their value goes to the server.
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-value], button[data-index]');
  if (button) trigger('click', { value: button.dataset.value ?? button.dataset.index });
});
