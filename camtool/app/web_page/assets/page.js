import {decodePhoto, drawHeat, explain, getLabel, openModel, placeMap, readPixels} from './camtool.js';

// The page around camtool.js. Names, labels and messages are only ever put in as text.

const $ = (id) => document.getElementById(id);
const settings = JSON.parse($('settings').textContent);
const palettes = Object.fromEntries(Object.entries(settings.palettes).map(([name, text]) => [name, decodeBase64(text)]));
const SHOWN_CLASSES = 5, LOW_RANK = 5, SMALL_SHARE = 0.25, CAMERA_SIDE = 480;

const state = {model: null, images: [], current: null, target: null, other: null, stream: null, run: 0};

function decodeBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function showStatus(text, isBad = false) {
  $('status').textContent = text;
  $('status').classList.toggle('bad', isBad);
}

const showError = (error) => showStatus(error.message || String(error), true);
const nameClass = (index) => getLabel(state.model.description, index);

/** Return the labels of all classes that have one. */
function listLabels() {
  const count = state.model.description.labels?.length ?? 0;
  return Array.from({length: count === 1 ? 2 : count}, (_, index) => nameClass(index));
}

const countClasses = () => state.current.results.get('top').probabilities.length;
const formatShare = (share) => `${(100 * share).toFixed(1)}%`;

// -------------------------------------------------------------------------------------------------------- loading

/** Return a part of the page: inside of it, or a file beside it, with the progress of loading. */
async function readPart(name) {
  const block = document.querySelector(`script[data-part="${name}"]`);
  if (block) return decodeBase64(block.textContent);
  let response;
  try {
    response = await fetch(settings.files[name]);
  } catch {
    throw new Error('The files beside this page cannot be read. A browser reads them from a web server alone, e.g. ' +
      'python -m http.server; a page of camtool export --single-file opens by a double click.');
  }
  if (!response.ok) throw new Error(`${settings.files[name]} is missing beside this page (${response.status}).`);
  const total = Number(response.headers.get('content-length')), parts = [];
  let count = 0;
  for (const reader = response.body.getReader(); ;) {
    const {done, value} = await reader.read();
    if (done) break;
    parts.push(value);
    count += value.length;
    showStatus(`Loading the ${name}: ${(count / 1e6).toFixed(1)}${total ? ` of ${(total / 1e6).toFixed(1)}` : ''} MB`);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function useModel(bytes) {
  let model;
  try {
    model = await openModel(ort, bytes);
  } catch (error) {
    throw new Error(`The model cannot be used. ${String(error.message || error).split('\n')[0]}`);
  }
  await state.model?.session.release();
  state.model = model;
  state.target = state.other = null;
  state.images.forEach((image) => image.results.clear());
  $('model-name').textContent = `${model.description.model}, explained in your browser`;
  $('method').replaceChildren(...Object.keys(model.description.outputs).map((name) => new Option(name, name)));
  const labels = listLabels();
  $('labels').replaceChildren(...labels.map((label) => Object.assign(document.createElement('option'), {value: label})));
  $('class').value = $('other').value = '';
}

async function start() {
  Object.keys(palettes).forEach((name) => $('colormap').append(new Option(name, name)));
  drawScale();
  ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmBinary = await readPart('runtime');
  showStatus('Opening the model ...');
  await useModel(await readPart('model'));
  await addImages([new File([await readPart('sample')], settings.sample)]);
}

// --------------------------------------------------------------------------------------------------------- images

async function addImages(files) {
  const added = [], problems = [];
  for (const file of files) {
    try {
      if (file.name.endsWith('.onnx')) {
        showStatus(`Opening ${file.name} ...`);
        await useModel(new Uint8Array(await file.arrayBuffer()));
        continue;
      }
      added.push({name: file.name, photo: await decodePhoto(file), results: new Map()});
    } catch (error) {
      problems.push(`${file.name}: ${error.message}`);
    }
  }
  stopCamera();
  state.images.push(...added);
  added.forEach((image) => $('thumbnails').append(makeThumbnail(image)));
  state.current = added[0] ?? state.current;
  if (added.length) state.target = null;
  if (state.current) await show();
  if (state.images.length > 1) await listImages();
  if (problems.length) showStatus(problems.join(' '), true);
}

function makeThumbnail(image) {
  const {width, height} = image.photo, side = Math.min(width, height), button = document.createElement('button');
  const canvas = Object.assign(document.createElement('canvas'), {width: 112, height: 112});
  const full = new OffscreenCanvas(width, height);
  full.getContext('2d').putImageData(new ImageData(image.photo.pixels, width, height), 0, 0);
  canvas.getContext('2d').drawImage(full, (width - side) / 2, (height - side) / 2, side, side, 0, 0, 112, 112);
  button.type = 'button';
  button.setAttribute('aria-label', image.name);
  button.append(canvas);
  button.addEventListener('click', () => choose(image));
  image.button = button;
  return button;
}

async function choose(image) {
  stopCamera();
  state.current = image;
  state.target = null;
  await show().catch(showError);
}

/** Fill the table of all images; those that are new are explained. */
async function listImages() {
  $('many').hidden = false;
  const rows = [];
  for (const [number, image] of state.images.entries()) {
    showStatus(`Explaining ${number + 1} of ${state.images.length} images ...`);
    const {index, probabilities} = await getResult(image, null);
    const row = document.createElement('tr'), open = document.createElement('button');
    open.type = 'button';
    open.textContent = image.name;
    open.addEventListener('click', () => choose(image));
    const cells = [open, nameClass(index), formatShare(probabilities[index])].map((content) => {
      const cell = document.createElement('td');
      cell.append(content);
      return cell;
    });
    row.append(...cells);
    rows.push(row);
  }
  $('rows').replaceChildren(...rows);
  showStatus('');
}

function writeTable() {
  // A cell that begins with one of these would be a formula in a spreadsheet.
  const quote = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const lines = state.images.map((image) => {
    const {index, probabilities} = image.results.get('top');
    return [quote(image.name), quote(nameClass(index)), probabilities[index].toFixed(6)].join(',');
  });
  return ['image,class,probability', ...lines].join('\r\n') + '\r\n';
}

// ------------------------------------------------------------------------------------------------------ explaining

/** Explain an image for a class, or for the top class, once. */
async function getResult(image, target) {
  const key = target ?? 'top';
  if (!image.results.has(key)) {
    await new Promise((resolve) => setTimeout(resolve));  // the status is drawn before the work begins
    image.results.set(key, await explain(state.model, image.photo, target ?? -1));
  }
  return image.results.get(key);
}

async function show() {
  const run = ++state.run, image = state.current, start = performance.now();
  const isNew = !image.results.has(state.target ?? 'top');
  if (isNew && !state.stream) showStatus(`Explaining ${image.name} ...`);
  const top = await getResult(image, null), result = await getResult(image, state.target);
  const second = state.other === null ? null : await getResult(image, state.other);
  if (run !== state.run) return;
  const time = performance.now() - start;
  drawFigure($('first'), image, result, top, isNew ? `${Math.round(time)} ms` : '');
  $('second').hidden = second === null;
  if (second) drawFigure($('second'), image, second, top, '');
  drawBars(top, result.index);
  state.images.forEach((each) => each.button.setAttribute('aria-pressed', each === image));
  if (!state.stream) showStatus('');
}

function drawFigure(figure, image, result, top, time) {
  const {photo} = image, method = $('method').value, canvas = figure.querySelector('canvas');
  const placed = placeMap(result.maps[method], state.model.description, result.geometry, photo.height, photo.width);
  const look = {colormap: $('colormap').value, alpha: Number($('alpha').value), view: document.querySelector('[name=view]:checked').value};
  const pixels = drawHeat(photo, placed, palettes[look.colormap], look);
  canvas.width = photo.width;
  canvas.height = photo.height;
  canvas.getContext('2d').putImageData(new ImageData(pixels, photo.width, photo.height), 0, 0);
  const label = nameClass(result.index), share = formatShare(top.probabilities[result.index]);
  canvas.setAttribute('aria-label', `${image.name} with heat where ${state.model.description.model} found ${label}, by ${method}`);
  figure.querySelector('h2').textContent = label;
  figure.querySelector('.facts').textContent = [share, `${method} at ${state.model.description.layer}, ` +
    result.maps[method].grid.join(' x '), time].filter(Boolean).join('   ');
  figure.querySelector('.warnings').replaceChildren(...listWarnings(result, top, placed, photo, method).map((text) =>
    Object.assign(document.createElement('li'), {textContent: text})));
}

/** Return the warnings that need no further pass, in the words of camtool. */
function listWarnings(result, top, placed, photo, method) {
  const codes = [], rank = top.probabilities.filter((share) => share > top.probabilities[result.index]).length;
  const [down, across] = [placed.rows, placed.columns].map((line) => line.reduce((sum, one) => sum + one, 0));
  if (photo.pixels.every((value, at) => value === photo.pixels[at % 4])) codes.push('constant-image');
  if (down * across < SMALL_SHARE * photo.width * photo.height) codes.push('small-part-seen');
  if (result.maps[method].values.some((value) => !Number.isFinite(value))) codes.push('not-finite');
  else if (result.maps[method].values.every((value) => value === 0)) codes.push('zero-gradient');
  else if (placed.isConstant) codes.push('constant-map');
  if (rank >= LOW_RANK) codes.push('low-rank');
  return codes.map((code) => settings.warnings[code].join(' '));
}

function drawBars(top, explained) {
  const order = top.probabilities.map((_, index) => index).sort((a, b) => top.probabilities[b] - top.probabilities[a]);
  $('bars').replaceChildren(...order.slice(0, SHOWN_CLASSES).map((index) => {
    const button = document.createElement('button'), name = document.createElement('span'), share = document.createElement('span');
    button.type = 'button';
    button.setAttribute('aria-pressed', index === explained);
    button.style.setProperty('--share', formatShare(top.probabilities[index]));
    name.textContent = nameClass(index);
    share.textContent = formatShare(top.probabilities[index]);
    button.append(name, share);
    button.addEventListener('click', () => { state.target = index; show().catch(showError); });
    return button;
  }));
}

function drawScale() {
  const palette = palettes[$('colormap').value], pixels = new ImageData(256, 1);
  for (let level = 0; level < 256; level++) pixels.data.set([...palette.subarray(3 * level, 3 * level + 3), 255], 4 * level);
  $('scale').getContext('2d').putImageData(pixels, 0, 0);
}

/** Return the class that was typed, by name or number; null for none. */
function findClass(text) {
  const wanted = text.trim();
  if (!wanted) return null;
  const index = listLabels().findIndex((label) => label.toLowerCase() === wanted.toLowerCase());
  const number = index >= 0 ? index : /^\d+$/.test(wanted) ? Number(wanted) : -1;
  if (number < 0 || number >= countClasses()) throw new Error(`'${wanted}' is not among the ${countClasses()} classes.`);
  return number;
}

// -------------------------------------------------------------------------------------------------------- camera

async function startCamera() {
  if (!navigator.mediaDevices) throw new Error('The browser gives the camera to pages of https and localhost alone.');
  const video = document.createElement('video');
  try {
    state.stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: 'environment'}});
  } catch (error) {
    throw new Error(`The camera cannot be used: ${error.message || error.name}.`);
  }
  video.srcObject = state.stream;
  video.muted = video.playsInline = true;
  await video.play();
  $('camera').setAttribute('aria-pressed', 'true');
  const scale = Math.min(1, CAMERA_SIDE / Math.min(video.videoWidth, video.videoHeight));
  const size = [video.videoWidth, video.videoHeight].map((side) => Math.round(side * scale));
  for (let count = 1, start = performance.now(); state.stream; count++) {
    state.current = {name: 'camera', photo: readPixels(video, ...size), results: new Map()};
    await show();
    await new Promise(requestAnimationFrame);
    if (state.stream) showStatus(`${(1000 * count / (performance.now() - start)).toFixed(1)} frames a second`);
  }
}

/** Stop the camera; its last frame stays as an image. */
function stopCamera() {
  if (!state.stream) return;
  state.stream.getTracks().forEach((track) => track.stop());
  state.stream = null;
  $('camera').setAttribute('aria-pressed', 'false');
  showStatus('');
}

// -------------------------------------------------------------------------------------------------------- controls

function download(blob, name) {
  const link = Object.assign(document.createElement('a'), {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const redraw = () => state.current && show().catch(showError);

/** Call a function with an event's value; what it throws is shown. */
const on = (id, event, act) => $(id).addEventListener(event, async (happened) => {
  try {
    await act(happened);
  } catch (error) {
    showError(error);
  }
});

on('files', 'change', async ({target}) => { const files = [...target.files]; target.value = ''; await addImages(files); });
on('camera', 'click', () => (state.stream ? stopCamera() : startCamera()));
on('paste', 'click', async () => {
  const items = navigator.clipboard?.read ? await navigator.clipboard.read().catch(() => []) : [];
  const item = items.find((one) => one.types.some((type) => type.startsWith('image/')));
  if (!item) throw new Error('The clipboard has no image that this page may read; press Ctrl-V, or choose a file.');
  await addImages([new File([await item.getType(item.types.find((type) => type.startsWith('image/')))], 'pasted image')]);
});
on('class', 'change', ({target}) => { state.target = findClass(target.value); return show(); });
on('other', 'change', ({target}) => { state.other = findClass(target.value); return show(); });
on('method', 'change', redraw);
on('alpha', 'input', redraw);
on('view', 'change', redraw);
on('colormap', 'change', () => {
  $('alpha').value = settings.alphas[$('colormap').value];
  drawScale();
  return redraw();
});
on('save', 'click', async () => {
  const canvas = $('first').querySelector('canvas');
  const blob = await new Promise((resolve) => canvas.toBlob(resolve));
  download(blob, `${state.current.name.replace(/\.[^.]*$/, '')}_${$('first').querySelector('h2').textContent}.png`);
});
on('csv', 'click', () => download(new Blob([writeTable()], {type: 'text/csv'}), 'camtool.csv'));
on('theme', 'click', () => {
  const root = document.documentElement, isDark = root.dataset.theme
    ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = isDark ? 'light' : 'dark';
});
document.addEventListener('dragover', (event) => event.preventDefault());
document.addEventListener('drop', (event) => { event.preventDefault(); addImages([...event.dataTransfer.files]).catch(showError); });
document.addEventListener('paste', (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) { event.preventDefault(); addImages(files).catch(showError); }
});

start().catch(showError);
