// Clicks on the picture, in pixels of the original image.
element.addEventListener('click', (event) => {
  const image = event.target.closest('img[data-width]');
  if (!image) return;
  const box = image.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * Number(image.dataset.width);
  const y = ((event.clientY - box.top) / box.height) * Number(image.dataset.height);
  trigger('click', { x: Math.floor(x), y: Math.floor(y) });
});
