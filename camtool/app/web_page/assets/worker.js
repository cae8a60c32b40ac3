import {decodePhoto, drawContours, drawHeat, explain, getLabel, openModel, placeMap, readPixels} from './camtool.js';

// The worker of the page: it decodes, explains and draws, so that the page never waits. `ort` is the runtime.

const LOW_RANK = 5, SMALL_SHARE = 0.25, THUMBNAIL = 112, KEPT_MAPS = 2, SCALE = 16;

let model = null, device = 'wasm', palettes = {}, frame = null, count = 0, current = {key: null, photo: null};
const placements = new Map();

/** Return the photo of an image, or of the camera; only the last one is kept, as many large ones would fill the memory. */
async function getPhoto({key, blob}) {
  if (!blob) return frame;
  if (current.key !== key) current = {key, photo: await decodePhoto(blob)};
  return current.photo;
}

/**
 * Open a model, and run it once: the engine compiles while the page loads, and a model that cannot run replaces no other.
 * Some devices of WebGPU fail only then, and the processor follows.
 */
async function open(bytes) {
  let problem = '';
  for (const provider of device === 'webgpu' ? ['webgpu', 'wasm'] : ['wasm']) {
    let opened = null;
    try {
      opened = await openModel(ort, bytes, {executionProviders: [provider], logSeverityLevel: 3});
      const dot = {width: 1, height: 1, pixels: Uint8ClampedArray.of(0, 0, 0, 255)};
      await explain(opened, dot);
      await model?.session.release();
      model = opened;
      const {description} = model, classes = description.labels?.length ?? 0;
      const labels = Array.from({length: classes === 1 ? 2 : classes}, (_, index) => getLabel(description, index));
      return {name: description.model, layer: description.layer, methods: Object.keys(description.outputs), labels, provider, problem};
    } catch (error) {
      await opened?.session.release().catch(() => null);
      if (provider !== 'webgpu') throw error;
      problem = shorten(error);
    }
  }
}

/** Return the codes of the warnings that need no further pass. */
function listWarnings(photo, placed, {index, probabilities}, {values}) {
  const codes = [], rank = probabilities.filter((share) => share > probabilities[index]).length;
  const [down, across] = [placed.rows, placed.columns].map((line) => line.reduce((sum, one) => sum + one, 0));
  if (photo.pixels.every((value, at) => value === photo.pixels[at % 4])) codes.push('constant-image');
  if (down * across < SMALL_SHARE * photo.width * photo.height) codes.push('small-part-seen');
  if (values.some((value) => !Number.isFinite(value))) codes.push('not-finite');
  else if (values.every((value) => value === 0)) codes.push('zero-gradient');
  else if (placed.isConstant) codes.push('constant-map');
  if (rank >= LOW_RANK) codes.push('low-rank');
  return codes;
}

/** Return the colors of a look from little to most heat on gray, drawn as the picture is. */
function drawScale(look) {
  const width = SCALE, gray = new Uint8ClampedArray(4 * width).fill(look.view === 'overlay' ? 128 : 255), heat = new Float32Array(width);
  const placed = {heat: heat.map((_, at) => at / (width - 1)), rows: [1], columns: new Uint8Array(width).fill(1)};
  const drawn = drawHeat({width, height: 1, pixels: gray}, placed, palettes[look.colormap], look);
  return Array.from(heat, (_, at) => `rgb(${drawn.slice(4 * at, 4 * at + 3).join(' ')})`);
}

const TASKS = {
  async start(values) {
    ({device, palettes} = values);
    Object.assign(ort.env.wasm, {numThreads: values.threads, wasmBinary: values.binary});
    ort.env.logLevel = 'error';
    return open(values.bytes);
  },
  open: ({bytes}) => open(bytes),
  /** Decode an image; its thumbnail is a square from the middle. */
  async read(image) {
    const {width, height, pixels} = await getPhoto(image), side = Math.min(width, height);
    const size = {resizeWidth: THUMBNAIL, resizeHeight: THUMBNAIL, resizeQuality: 'medium'};
    const [left, top] = [width, height].map((length) => Math.floor((length - side) / 2));
    return createImageBitmap(new ImageData(pixels, width, height), left, top, side, side, size);
  },
  /** Take a picture of the camera as the current photo. */
  async see({bitmap}) {
    frame = readPixels(bitmap, bitmap.width, bitmap.height);
    bitmap.close();
  },
  /** Explain an image; with the result come its number and where its cells lie, as another model may follow before it is drawn. */
  async explain({image, target}) {
    const {centers, strides} = model.description;
    return {...await explain(model, await getPhoto(image), target ?? -1), centers, strides, number: ++count};
  },
  async draw({image, result, method, look}) {
    const photo = await getPhoto(image), {width, height} = photo, map = result.maps[method];
    const name = `${result.number} ${method}`;
    const placed = placements.get(name) ?? placeMap(map, result, result.geometry, height, width);
    placements.set(name, placed);
    if (placements.size > KEPT_MAPS) placements.delete(placements.keys().next().value);
    const pixels = look.view === 'contours' ? drawContours(photo, placed) : drawHeat(photo, placed, palettes[look.colormap], look);
    const isWhole = [...placed.rows, ...placed.columns].every(Boolean);
    return {pixels, width, height, isWhole, scale: drawScale(look), codes: listWarnings(photo, placed, result, map)};
  },
};

const FROM_RUNTIME = /ERROR_MESSAGE:(?:.*\[ONNXRuntimeError\] : \d+ : \w+ :)?(.*)/s, LONGEST = 300;

/** Return an error in one line; the runtime throws numbers and exceptions of WebAssembly as well, which say nothing. */
function shorten(error) {
  const [, said] = FROM_RUNTIME.exec(error?.message) ?? [];
  if (said?.includes('bad_alloc') || !error?.message) return 'The runtime has stopped, perhaps for lack of memory.';
  return said ? `The runtime says: ${said.trim().replaceAll(/\s+/g, ' ').slice(0, LONGEST)}` : error.message.split('\n')[0];
}

// Threads of the runtime run this script, too.
if (!self.name.startsWith('em-pthread')) {
  let last = null;
  self.onmessage = ({data: {number, task, values}}) => {
    last = Promise.resolve(last).then(async () => {
      try {
        const answer = await TASKS[task](values);
        self.postMessage({number, answer}, answer?.pixels ? [answer.pixels.buffer] : []);
      } catch (error) {
        self.postMessage({number, problem: shorten(error)});
      }
    });
  };
}
