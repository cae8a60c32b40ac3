// Painting on the photo: strokes on a canvas over it, sent as a PNG when the pointer is released.
const MOST = 1024;
let last = null;
const prepare = () => {
  const image = element.querySelector('.ct-paint img');
  const canvas = element.querySelector('.ct-paint canvas');
  if (!image || !canvas || canvas.dataset.ready) return canvas;
  const [width, height] = [Number(image.dataset.width), Number(image.dataset.height)];
  const scale = Math.min(1, MOST / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.dataset.ready = 'yes';
  return canvas;
};
const locate = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
};
const draw = (canvas, from, to) => {
  const context = canvas.getContext('2d');
  const share = Number(element.querySelector('input[type=range]').value) / 100;
  context.lineCap = context.lineJoin = 'round';
  context.strokeStyle = '#ff3d7f';
  context.lineWidth = Math.max(2, share * Math.max(canvas.width, canvas.height));
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(to[0] + 0.01, to[1]);
  context.stroke();
};
const send = (canvas) => trigger('release', { mask: canvas ? canvas.toDataURL('image/png') : '' });
element.addEventListener('pointerdown', (event) => {
  if (event.target.tagName !== 'CANVAS') return;
  const canvas = prepare();
  canvas.setPointerCapture(event.pointerId);
  last = locate(canvas, event);
  draw(canvas, last, last);
});
element.addEventListener('pointermove', (event) => {
  if (!last) return;
  const canvas = prepare();
  const here = locate(canvas, event);
  draw(canvas, last, here);
  last = here;
});
const finish = () => {
  if (!last) return;
  last = null;
  send(prepare());
};
element.addEventListener('pointerup', finish);
element.addEventListener('pointercancel', finish);
element.addEventListener('click', (event) => {
  if (!event.target.closest('[data-paint=clear]')) return;
  const canvas = prepare();
  canvas.getContext('2d').clearRect(0, 0, canvas.width, canvas.height);
  send(null);
});
