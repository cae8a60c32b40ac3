// A file is made when the user asks for it. Its link gets the address a moment later, so wait for it.
window.camtoolDownload = (id) => {
  const started = Date.now();
  const attempt = () => {
    const link = document.querySelector(`#${id} a, a#${id}, #${id}`);
    if (link && (link.href || link.tagName !== 'A')) link.click();
    else if (Date.now() - started < 5000) setTimeout(attempt, 50);
  };
  setTimeout(attempt, 100);
};
