// The page. All that takes long is done by the worker. Names, labels and messages are only ever put in as text.

const $ = (id) => document.getElementById(id);
const settings = JSON.parse($('settings').textContent);
const palettes = Object.fromEntries(Object.entries(settings.palettes).map(([name, text]) => [name, decodeBase64(text)]));
const SHOWN_CLASSES = 5, CAMERA_SIDE = 480, MOST_THREADS = 4;

const state = {worker: null, model: null, images: [], current: null, target: null, other: null, stream: null,
  count: 0, listing: 0, isStopped: false, hasGpu: false, threads: 1};

function decodeBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function showStatus(text, isBad = false) {
  $('status').textContent = text;
  $('status').classList.toggle('bad', isBad);
}

const showError = (error) => showStatus(error.message || String(error), true);
const nameClass = (index) => state.model.labels[index] ?? `class ${index}`;
const formatShare = (share) => `${(100 * share).toFixed(1)}%`;

/** Make an element with properties and contents. */
const make = (name, properties = {}, ...contents) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...contents);
  return element;
};

// ---- worker

const waiting = new Map();
const showBusy = () => $('stage').setAttribute('aria-busy', waiting.size > 0);

/** Ask the worker for a task; it does one after the other. */
function ask(task, values, transfer = []) {
  return new Promise((resolve, reject) => {
    state.count += 1;
    state.worker.postMessage({number: state.count, task, values}, transfer);
    waiting.set(state.count, {resolve, reject});
    showBusy();
  });
}

function startWorker(code) {
  state.worker?.terminate();
  const address = URL.createObjectURL(new Blob([code], {type: 'text/javascript'}));
  state.worker = new Worker(address);  // its policy is that of the page
  state.worker.onmessage = ({data: {number, answer, problem}}) => {
    const {resolve, reject} = waiting.get(number);
    waiting.delete(number);
    problem === undefined ? resolve(answer) : reject(new Error(problem));
    setTimeout(showBusy);  // after the next task, if this one was not the last
  };
  state.worker.onerror = (event) => {
    event.preventDefault();
    waiting.forEach(({reject}) => reject(new Error(`The work has stopped: ${event.message || 'the browser allows no worker'}.`)));
    waiting.clear();
    showBusy();
  };
}

// ---- loading

/** Return a part of the page: inside of it, or a file beside it, with the progress of loading. */
async function readPart(name) {
  const block = document.querySelector(`script[data-part="${name}"]`);
  if (block) return decodeBase64(block.textContent);
  let response;
  try {
    response = await fetch(settings.files[name]);
  } catch {
    throw new Error('The files beside this page cannot be read. A browser reads them from a web server alone, e.g. ' +
      'python -m http.server; a page that camtool exports as one .html file opens by a double click.');
  }
  if (!response.ok) throw new Error(`${settings.files[name]} is missing beside this page (${response.status}).`);
  const {headers} = response, parts = [];
  const total = headers.has('content-encoding') ? 0 : Number(headers.get('content-length'));  // compressed, unlike what is read
  let count = 0;
  for (const reader = response.body.getReader(); ;) {
    const {done, value} = await reader.read();
    if (done) break;
    parts.push(value);
    count += value.length;
    showStatus(`Loading ${settings.files[name]}: ${(count / 1e6).toFixed(1)}${total ? ` of ${(total / 1e6).toFixed(1)}` : ''} MB ...`);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Return the device to compute on: WebGPU on a graphics processor if the page has its files, or as the address says. */
async function chooseDevice() {
  const canRun = settings.files['gpu-code'] && WebAssembly.Suspending && navigator.gpu;
  const adapter = canRun ? await navigator.gpu.requestAdapter().catch(() => null) : null;
  state.hasGpu = adapter !== null;
  const isFast = adapter && !(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter);
  const wanted = new URLSearchParams(location.search).get('device') ?? (isFast ? 'webgpu' : 'wasm');
  return settings.files['gpu-code'] ? wanted : 'wasm';
}

/** Show what computes, and why it is not WebGPU if that failed; the other one is a link, as it opens the page anew. */
function showDevice({provider, problem}) {
  const {threads} = state, name = provider === 'webgpu' ? 'WebGPU' : `WebAssembly, ${threads} thread${threads > 1 ? 's' : ''}`;
  const [device, other] = provider === 'webgpu' ? ['wasm', 'WebAssembly'] : ['webgpu', 'WebGPU'];
  $('device').replaceChildren(`Computed by ${name}. `, problem ? `WebGPU failed: ${problem}` : '',
    state.hasGpu && !problem ? make('a', {href: `?device=${device}`}, `Use ${other}`) : '');
}

/** Forget and clear all that the former model computed: none of it may stand under the name of another one. */
function useModel(model) {
  state.model = model;
  showDevice(model);
  state.target = state.other = null;
  wanted += 1;  // what is being shown, and the table, begin again
  state.listing += 1;
  [...state.images, state.current].forEach((image) => image?.results.clear());
  for (const canvas of document.querySelectorAll('figure canvas')) {
    canvas.getContext('2d').clearRect(0, 0, canvas.width, canvas.height);
    canvas.setAttribute('aria-label', 'No picture yet');
  }
  document.querySelectorAll('figure h2, figure .facts, figure .warnings, #bars, #rows').forEach((part) => part.replaceChildren());
  $('model-name').textContent = `${model.name}, explained in your browser`;
  $('method').replaceChildren(...model.methods.map((name) => new Option(name, name)));
  $('labels').replaceChildren(...model.labels.map((value) => make('option', {value})));
}

async function openFirst() {
  const threads = state.threads = globalThis.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
  const bytes = await readPart('model'), chosen = await chooseDevice();
  let problem = '';
  for (const device of chosen === 'webgpu' ? ['webgpu', 'wasm'] : ['wasm']) {
    try {
      const prefix = device === 'webgpu' ? 'gpu-' : '';
      startWorker(await readPart(`${prefix}code`));
      const binary = await readPart(`${prefix}runtime`);
      showStatus('Opening the model ...');
      const model = await ask('start', {device, binary, threads, bytes, palettes}, [binary.buffer]);
      useModel({...model, problem: problem || model.problem});
      break;
    } catch (error) {
      if (device === 'wasm') throw error;
      problem = error.message;
    }
  }
}

async function start() {
  Object.keys(palettes).forEach((name) => $('colormap').append(new Option(name, name)));
  await openFirst();
  const samples = [], problems = [];
  for (const name of settings.samples) {
    await readPart(name).then((bytes) => samples.push({name, blob: new Blob([bytes])}), ({message}) => problems.push(message));
  }
  await takeFiles(samples, problems, false);
}

// ---- images

/** Take files, {name, blob}, that the user gave, as soon as the page has started. */
async function addFiles(files) {
  await started;
  await takeFiles(files, []);
}

/** Show the first image that can be read, and explain all, in a table if there are several; a model replaces the former one. */
async function takeFiles(files, problems, isListed = true) {
  const images = [], kept = [];
  for (const file of files) {
    if (!file.name.endsWith('.onnx')) images.push(makeImage(file));
    else await openFile(file).catch((error) => problems.push(`${file.name}: ${error.message}`));
  }
  const isTable = isListed && images.length > 1;  // reads the others later, and has rows for those that cannot be read
  let first = null;
  for (const image of images) {
    showStatus(`Reading ${image.name} ...`);
    const problem = isTable && first ? null : await readImage(image).then(() => null, (error) => error.message);
    if (problem === null) first ??= image;
    else if (!isTable) problems.push(`${image.name}: ${problem}`);
    if (problem === null || isTable) kept.push(image);
  }
  stopCamera();
  state.images.push(...kept);
  $('thumbnails').append(...kept.map((image) => image.button));
  const shown = first ? showImage(first) : state.current && show();
  await shown?.catch((error) => problems.push(error.message));
  if (isListed && state.images.length > 1) problems.push(...await listImages());
  if (problems.length || $('stop').hidden) showStatus(problems.join(' '), problems.length > 0);
}

async function openFile({name, blob}) {
  showStatus(`Opening ${name} ...`);
  const bytes = new Uint8Array(await blob.arrayBuffer());
  useModel(await ask('open', {bytes}, [bytes.buffer]).catch((error) => { throw new Error(`The model cannot be used. ${error.message}`); }));
  $('class').value = $('other').value = '';
}

function makeImage({name, blob}) {
  const image = {name, source: {key: ++state.count, blob}, results: new Map(), isRead: false};
  image.button = make('button', {ariaLabel: name, title: name, onclick: () => choose(image)}, make('canvas'));
  return image;
}

/** Read an image, once, and draw its thumbnail. The worker keeps the photo until it reads another one. */
async function readImage(image) {
  if (image.isRead) return;
  const bitmap = await ask('read', image.source), canvas = image.button.querySelector('canvas');
  Object.assign(canvas, {width: bitmap.width, height: bitmap.height}).getContext('2d').drawImage(bitmap, 0, 0);
  image.isRead = true;
  image.button.hidden = false;
}

/** Show an image for its top class; the former one stays if that fails. */
async function showImage(image) {
  const {current, target} = state;
  Object.assign(state, {current: image, target: null});
  try {
    await show();
  } catch (error) {
    if (state.current === image) Object.assign(state, {current, target});
    throw error;
  }
}

function choose(image) {
  stopCamera();
  return showImage(image).catch(showError);
}

/** Fill the table of all images; those that are new are explained, until the user stops it. Returns what went wrong. */
async function listImages() {
  const run = ++state.listing, isCurrent = () => run === state.listing;
  $('many').hidden = false;
  $('rows').replaceChildren();
  $('stop').hidden = state.isStopped = false;
  let failed = 0;
  try {
    for (const [number, image] of state.images.entries()) {
      showStatus(`Explaining ${number + 1} of ${state.images.length} images ...`);
      const cells = await makeCells(image);
      if (!isCurrent()) return [];
      $('rows').append(make('tr', {}, ...cells));
      failed += !image.results.has('top');
      if (state.isStopped) break;
    }
  } finally {
    if (isCurrent()) $('stop').hidden = true;
  }
  return failed ? [`${failed} of ${state.images.length} images could not be explained; the table says why.`] : [];
}

/** Return the cells of an image's row: its top class, or what is wrong with it. */
async function makeCells(image) {
  try {
    const {index, probabilities} = await getResult(image, null);
    const open = make('button', {className: 'text-button', onclick: () => choose(image)}, image.name);
    return [open, nameClass(index), formatShare(probabilities[index])].map((content) => make('td', {}, content));
  } catch (error) {
    image.button.hidden = !image.isRead;
    return [make('td', {}, image.name), make('td', {colSpan: 2, className: 'bad'}, error.message)];
  }
}

function writeTable() {
  // A cell that begins with one of these would be a formula in a spreadsheet.
  const quote = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const lines = state.images.filter((image) => image.results.has('top')).map((image) => {
    const {index, probabilities} = image.results.get('top');
    return [quote(image.name), quote(nameClass(index)), probabilities[index].toFixed(6)].join(',');
  });
  return ['image,class,probability', ...lines].join('\r\n') + '\r\n';
}

// ---- explaining

/** Explain an image for a class, or for the top class, once. */
async function getResult(image, target) {
  const key = target ?? 'top';
  if (!image.results.has(key)) {
    await readImage(image);
    if (!state.stream && $('stop').hidden) showStatus(`Explaining ${image.name} ...`);
    image.results.set(key, await ask('explain', {image: image.source, target}));
  }
  return image.results.get(key);
}

let wanted = 0, showing = null;

/** Show the current image as the controls say; what is asked for during the work replaces it. */
function show() {
  wanted += 1;
  showing ??= (async () => {
    try {
      for (let run = 0; run !== wanted;) {
        run = wanted;
        await showOnce(() => run === wanted).catch((error) => { if (run === wanted) throw error; });
      }
    } finally {
      showing = null;
    }
  })();
  return showing;
}

async function showOnce(isWanted) {
  const image = state.current, start = performance.now(), {target, other} = state;
  const isNew = !image.results.has(target ?? 'top');
  const top = await getResult(image, null);
  const result = isWanted() && await getResult(image, target);
  const second = isWanted() && other !== null ? await getResult(image, other) : null;
  if (!isWanted()) return;
  const time = isNew ? `${Math.round(performance.now() - start)} ms` : '';
  await drawFigure($('first'), image, result, time);
  if (second && isWanted()) await drawFigure($('second'), image, second, '');
  if (!isWanted()) return;
  $('second').hidden = $('swap').hidden = second === null;
  drawBars(top, result.index);
  state.images.forEach((one) => one.button.setAttribute('aria-pressed', one === image));
  if (!state.stream && $('stop').hidden) showStatus('');
}

async function drawFigure(figure, image, result, time) {
  const {model} = state, method = $('method').value, view = document.querySelector('[name=view]:checked').value;
  const look = {colormap: $('colormap').value, alpha: Number($('alpha').value), view};
  const {pixels, width, height, isWhole, scale, codes} = await ask('draw', {image: image.source, result, method, look});
  if (model !== state.model) return;
  const canvas = Object.assign(figure.querySelector('canvas'), {width, height});
  canvas.getContext('2d').putImageData(new ImageData(pixels, width, height), 0, 0);
  const label = nameClass(result.index), {name, layer} = model;
  canvas.setAttribute('aria-label', `${image.name} with ${view === 'contours' ? 'lines around' : 'heat on'} what speaks for ${label} in ${name}, by ${method}`);
  figure.querySelector('h2').textContent = label;
  figure.querySelector('.facts').textContent = [formatShare(result.probabilities[result.index]),
    `${method} at ${layer}, ${result.maps[method].grid.join(' x ')}`, time].filter(Boolean).join('   ');
  figure.querySelector('.warnings').replaceChildren(...codes.map((code) => make('li', {className: 'warning serious'}, settings.warnings[code].join(' '))));
  $('legend').hidden = view === 'contours';
  $('unseen').hidden = isWhole || view !== 'overlay';
  $('scale').style.background = `linear-gradient(90deg, ${scale.join(', ')})`;
}

function drawBars(top, explained) {
  const order = top.probabilities.map((_, index) => index).sort((a, b) => top.probabilities[b] - top.probabilities[a]);
  const focused = [...$('bars').querySelectorAll('button')].indexOf(document.activeElement);
  $('bars').replaceChildren(...order.slice(0, SHOWN_CLASSES).map((index) => {
    const name = nameClass(index), share = formatShare(top.probabilities[index]);
    const button = make('button', {className: 'bar', ariaPressed: index === explained, onclick: () => setTargets(index, state.other)},
      make('span', {className: 'label'}, name), make('span', {className: 'share'}, share));
    button.style.setProperty('--share', share);
    const compare = make('button', {className: 'icon-button', ariaPressed: index === state.other, ariaLabel: `Compare with ${name}`, title: `Compare with ${name}`,
      onclick: () => setTargets(state.target, index === state.other ? null : index)}, '+');
    return make('div', {className: 'both'}, button, compare);
  }));
  $('bars').querySelectorAll('button')[focused]?.focus();
}

/** Show the map of a class, and beside it that of another one. */
function setTargets(target, other) {
  Object.assign(state, {target, other});
  $('class').value = target === null ? '' : nameClass(target);
  $('other').value = other === null ? '' : nameClass(other);
  return show().catch(showError);
}

/** Return the class that was typed, by name or number; null for none. */
async function findClass(text) {
  const wanted = text.trim();
  if (!wanted) return null;
  const index = state.model.labels.findIndex((label) => label.toLowerCase() === wanted.toLowerCase());
  const number = index >= 0 ? index : /^\d+$/.test(wanted) ? Number(wanted) : -1;
  const {probabilities: {length}} = await getResult(state.current, null);
  if (number < 0 || number >= length) throw new Error(`'${wanted}' is not among the ${length} classes.`);
  return number;
}

// ---- camera

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
  try {
    for (let count = 1, start = performance.now(); state.stream; count++) {
      const bitmap = await createImageBitmap(video, {resizeWidth: size[0], resizeHeight: size[1]});
      const image = {name: 'camera', source: {key: ++state.count}, results: new Map(), isRead: true};
      await ask('see', {bitmap}, [bitmap]);
      if (!state.stream && state.current?.source.blob) break;  // the user chose an image; else this is the last frame
      state.current = image;
      await show();
      const seconds = (performance.now() - start) / 1000;
      if (state.stream && seconds > 1) {
        showStatus(`${(count / seconds).toFixed(1)} frames a second`);
        [count, start] = [0, performance.now()];
      }
    }
  } finally {
    stopCamera();
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

// ---- controls

function download(blob, name) {
  const link = Object.assign(document.createElement('a'), {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Call a function with an event, by default not before the page has started; what it throws is shown. */
const on = (id, event, act, isEarly = false) => $(id).addEventListener(event, async (happened) => {
  try {
    if (!isEarly) await started;
    await act(happened);
  } catch (error) {
    showError(error);
  }
});

/** The same for what needs an image: there is none if no sample could be read. */
const onImage = (id, event, act) => on(id, event, (happened) => {
  if (!state.current) throw new Error('There is no image yet; choose one.');
  return act(happened);
});

const nameFile = (blob) => ({name: blob.webkitRelativePath || blob.name, blob});

/** Return the files of an input, which can be used anew. */
const takeChosen = (input) => { const files = [...input.files]; input.value = ''; return files.map(nameFile); };

/** Return the images of a folder in the order of their paths, without hidden ones. */
function listFolder(files) {
  const images = files.filter(({name, blob}) => blob.type.startsWith('image/') && !name.includes('/.'));
  if (!images.length) throw new Error('The folder has no images.');
  return images.sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** Yield all files of a folder that was dropped. */
async function* walk(entry) {
  const call = (object, name) => new Promise((resolve, reject) => object[name](resolve, reject)).catch(({message}) => {
    // Chrome refuses it to pages that were opened as files.
    throw new Error(`${entry.fullPath.slice(1)} cannot be read as it was dropped; choose it by the button Folder. ${message}`);
  });
  if (entry.isFile) yield {name: entry.fullPath.slice(1), blob: await call(entry, 'file')};
  else for (let reader = entry.createReader(), some; (some = await call(reader, 'readEntries')).length;) {
    for (const one of some) yield* walk(one);
  }
}

/** Return the files that were dropped, and the images of folders. The items are read at once, as they are gone after the event. */
async function listDropped(items) {
  const given = [...items].filter(({kind}) => kind === 'file').map((item) => {
    const entry = item.webkitGetAsEntry?.();
    return entry?.isDirectory ? entry : nameFile(item.getAsFile());
  });
  const files = [];
  for (const one of given) {
    if (!one.isDirectory) { files.push(one); continue; }
    const found = [];
    for await (const file of walk(one)) found.push(file);
    files.push(...listFolder(found));
  }
  return files;
}

on('files', 'change', ({target}) => addFiles(takeChosen(target)), true);
on('folder', 'change', ({target}) => addFiles(listFolder(takeChosen(target))), true);
on('camera', 'click', () => (state.stream ? stopCamera() : startCamera()));
on('paste', 'click', async () => {
  const items = navigator.clipboard?.read ? await navigator.clipboard.read().catch(() => []) : [];
  const item = items.find((one) => one.types.some((type) => type.startsWith('image/')));
  if (!item) throw new Error('The clipboard has no image that this page may read; press Ctrl-V, or choose a file.');
  await addFiles([{name: 'pasted image', blob: await item.getType(item.types.find((type) => type.startsWith('image/')))}]);
}, true);
onImage('class', 'change', async ({target}) => setTargets(await findClass(target.value), state.other));
onImage('other', 'change', async ({target}) => { const other = await findClass(target.value); return setTargets(state.target, other); });
onImage('swap', 'click', async () => setTargets(state.other, state.target ?? (await getResult(state.current, null)).index));
on('stop', 'click', () => { state.isStopped = true; }, true);
onImage('method', 'change', show);
onImage('alpha', 'input', show);
onImage('view', 'change', show);
on('colormap', 'change', () => {
  $('alpha').value = settings.alphas[$('colormap').value];
  return state.current && show();
});
onImage('save', 'click', async () => {
  const canvas = $('first').querySelector('canvas');
  const blob = await new Promise((resolve) => canvas.toBlob(resolve));
  const name = `${state.current.name.replace(/\.[^.]*$/, '')}_${$('first').querySelector('h2').textContent}.png`;
  download(blob, name.replaceAll('/', '_'));
});
on('csv', 'click', () => download(new Blob([writeTable()], {type: 'text/csv'}), 'camtool.csv'));
on('theme', 'click', () => {
  const root = document.documentElement, isDark = root.dataset.theme
    ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = isDark ? 'light' : 'dark';
}, true);
document.addEventListener('dragover', (event) => event.preventDefault());
document.addEventListener('drop', (event) => {
  event.preventDefault();
  listDropped(event.dataTransfer.items).then(addFiles).catch(showError);
});
document.addEventListener('paste', (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.length) { event.preventDefault(); addFiles(files.map(nameFile)).catch(showError); }
});
$('folder').labels[0].hidden = $('folder').hidden = !('webkitdirectory' in HTMLInputElement.prototype);

const second = $('first').cloneNode(true);
Object.assign(second, {id: 'second', hidden: true});
$('first').after(second);

const started = start();
started.catch(showError);
