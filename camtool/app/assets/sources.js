// Upload, paste, camera and drop: each gives a file to the one input of the page.
const give = (file) => {
  const input = document.querySelector('#image-box input[type=file]');
  if (!input || !file) return;
  const list = new DataTransfer();
  list.items.add(file);
  input.files = list.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
};
const say = (text) => { element.querySelector('.hint').textContent = text; };
const camera = () => element.querySelector('.camera');
const stop = () => {
  const video = camera().querySelector('video');
  (video.srcObject?.getTracks() ?? []).forEach((track) => track.stop());
  video.srcObject = null;
  camera().hidden = true;
};
const actions = {
  file: () => document.querySelector('#image-box input[type=file]').click(),
  paste: async () => {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((each) => each.startsWith('image/'));
        if (type) return give(new File([await item.getType(type)], `pasted.${type.split('/')[1]}`, { type }));
      }
      say('There is no image on the clipboard.');
    } catch { say('The browser allows no reading of the clipboard; press Ctrl+V instead.'); }
  },
  camera: async () => {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } });
      camera().querySelector('video').srcObject = stream;
      camera().hidden = false;
    } catch { say('No camera can be used: none is there, or the browser does not allow it.'); }
  },
  shoot: () => {
    const video = camera().querySelector('video');
    const canvas = document.createElement('canvas');
    canvas.width = video.videoWidth; canvas.height = video.videoHeight;
    canvas.getContext('2d').drawImage(video, 0, 0);
    canvas.toBlob((blob) => { give(new File([blob], 'camera.png', { type: 'image/png' })); stop(); }, 'image/png');
  },
  close: stop,
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-source]');
  if (button) actions[button.dataset.source]();
});
const findImage = (list) => [...(list ?? [])].find((file) => file.type.startsWith('image/')) ?? (list ?? [])[0];
document.addEventListener('paste', (event) => {
  const file = findImage(event.clipboardData?.files);
  if (file) { event.preventDefault(); give(file); }
});
document.addEventListener('dragover', (event) => {
  event.preventDefault();
  document.body.classList.add('dropping');
});
document.addEventListener('dragleave', (event) => {
  if (!event.relatedTarget) document.body.classList.remove('dropping');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  document.body.classList.remove('dropping');
  give(findImage(event.dataTransfer?.files));
});
