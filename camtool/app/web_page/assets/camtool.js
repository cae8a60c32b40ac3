// Explanations in the browser: prepare a photo, run a file of camtool.export, place the map on the photo.
//
// Nothing here touches the page or the network. The runtime is handed in: `import * as ort from "onnxruntime-web"`.
// Every step equals that of camtool in Python; tests compare them value by value.

/**
 * @typedef {{width: number, height: number, pixels: Uint8ClampedArray}} Photo  RGBA, opaque, upright.
 * @typedef {{shorter_side: ?number, resized: ?number[], crop: number[], interpolation: string, mean: number[],
 *            std: number[]}} Preparation  Lengths in pixels, sizes as [height, width].
 * @typedef {{box: number[], size: number[]}} Geometry  What the model sees: [top, left, bottom, right] in pixels of the
 *            photo, and the size [height, width] of its input.
 * @typedef {{values: Float32Array, grid: number[]}} RawMap
 * @typedef {{session: object, ort: object, description: object}} Model
 */

// ------------------------------------------------------------------------------------------------------ the file

/** Read a length or a tag of a protobuf message; returns [value, next position]. */
function readVarint(bytes, at) {
  let value = 0, factor = 1;
  for (;;) {
    if (at >= bytes.length) throw new Error('The file ends in the middle.');
    const byte = bytes[at++];
    value += (byte & 127) * factor;
    if (byte < 128) return [value, at];
    factor *= 128;
  }
}

/** Yield [field, bytes] of the parts of a protobuf message that have a length. */
function* readFields(bytes) {
  for (let at = 0; at < bytes.length;) {
    let tag, length;
    [tag, at] = readVarint(bytes, at);
    const kind = tag % 8;
    if (kind === 0) [, at] = readVarint(bytes, at);
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      [length, at] = readVarint(bytes, at);
      if (at + length > bytes.length) throw new Error('The file ends in the middle.');
      yield [Math.floor(tag / 8), bytes.subarray(at, at + length)];
      at += length;
    } else throw new Error('This is no ONNX file.');
  }
}

const METADATA = 14, KEY = 1, VALUE = 2;  // fields of ModelProto, and of its entries

/**
 * Read what camtool.export wrote about a model.
 * @param {Uint8Array} bytes  The ONNX file.
 * @throws {Error} It is no ONNX file, or not one of camtool.export.
 */
export function readDescription(bytes) {
  const decoder = new TextDecoder();
  for (const [field, part] of readFields(bytes)) {
    if (field !== METADATA) continue;
    const entry = new Map(readFields(part));
    if (decoder.decode(entry.get(KEY)) !== 'camtool') continue;
    try {
      return JSON.parse(decoder.decode(entry.get(VALUE)));
    } catch {
      throw new Error('The description of camtool in the file is no JSON; write the file again with camtool.export.');
    }
  }
  throw new Error('This file has no description of camtool; write it with camtool.export(model, "model.onnx").');
}

const LARGEST_SIDE = 4096;  // of an input, in pixels: more fills the memory of a browser

const isText = (value) => typeof value === 'string';
const isPositive = (value) => Number.isFinite(value) && value > 0;
const isNotZero = (value) => Number.isFinite(value) && value !== 0;
const isLength = (value) => Number.isInteger(value) && value >= 1 && value <= LARGEST_SIDE;
const isList = (value, isValid) => Array.isArray(value) && value.every(isValid);
const hasItems = (count, isValid) => (value) => isList(value, isValid) && value.length === count;
const orNone = (isValid) => (value) => value === null || value === undefined || isValid(value);
const isFilled = (isValid) => (value) => isList(value, isValid) && value.length > 0;
const isSize = hasItems(2, isLength), LENGTHS = `in whole pixels from 1 to ${LARGEST_SIDE}`;

/** Field of a description → [the check, what it must be]. A file may come from anybody. */
const FIELDS = {
  model: [isText, 'a text'],
  layer: [isText, 'a text'],
  labels: [orNone((value) => isList(value, isText)), 'a list of texts'],
  outputs: [(value) => isFilled(isText)(Object.values(value ?? [])), 'the name of an output for each method'],
  centers: [hasItems(2, isFilled(Number.isFinite)), 'two lists of numbers'],
  strides: [hasItems(2, isNotZero), 'two numbers other than 0'],
  'preparation.shorter_side': [orNone(isLength), `a length ${LENGTHS}`],
  'preparation.resized': [orNone(isSize), `[height, width] ${LENGTHS}`],
  'preparation.crop': [isSize, `[height, width] ${LENGTHS}`],
  'preparation.interpolation': [(value) => Object.hasOwn(FILTERS, value), 'bilinear, bicubic or lanczos'],
  'preparation.mean': [hasItems(3, Number.isFinite), 'three numbers'],
  'preparation.std': [hasItems(3, isPositive), 'three numbers above 0'],
};

/** Check types and ranges of a description before anything is computed with it. */
function checkDescription(description) {
  if (!description?.preparation) {
    throw new Error('The file does not say how photos are prepared: the transform does more than resize, crop and ' +
      'normalize, or it was written by an older version of camtool.');
  }
  if (!['softmax', 'sigmoid', 'identity'].includes(description.link)) throw new Error('The model returns no scores of classes.');
  for (const [name, [isValid, wanted]] of Object.entries(FIELDS)) {
    const value = name.split('.').reduce((part, key) => part?.[key], description);
    if (isValid(value)) continue;
    const given = (JSON.stringify(value) ?? 'nothing').slice(0, 60);
    throw new Error(`The file's ${name} must be ${wanted}, got ${given}; write it again with camtool.export.`);
  }
}

/**
 * Open a file of camtool.export.
 * @param {object} ort  The module onnxruntime-web.
 * @param {Uint8Array} bytes
 * @param {object} options  Of the runtime, e.g. `{executionProviders: ['webgpu']}`.
 * @returns {Promise<Model>}
 * @throws {Error} It is no such file, or the runtime cannot run it.
 */
export async function openModel(ort, bytes, options = {}) {
  const description = readDescription(bytes);
  checkDescription(description);
  return {ort, description, session: await ort.InferenceSession.create(bytes, options)};
}

// ------------------------------------------------------------------------------------------------- from photo to input

/**
 * Decode an image file: upright, transparent parts on white, as camtool does.
 * @param {Blob} blob
 * @returns {Promise<Photo>}
 * @throws {Error} The browser cannot read it.
 */
export async function decodePhoto(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, {imageOrientation: 'from-image', colorSpaceConversion: 'none'});
  } catch {
    throw new Error('This file is no image that the browser can read.');
  }
  const photo = readPixels(bitmap, bitmap.width, bitmap.height);
  bitmap.close();
  return photo;
}

/**
 * Read the pixels of what a canvas can draw, e.g. a video.
 * @returns {Photo}
 */
export function readPixels(source, width, height) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext('2d', {willReadFrequently: true});
  if (!context) throw new Error(`The image has ${width} x ${height} pixels: too many for this browser.`);
  context.fillStyle = 'white';
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0, width, height);
  return {width, height, pixels: context.getImageData(0, 0, width, height).data};
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** Name → [half of its width, weight at a distance]. */
const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => {
    const t = Math.abs(x);
    if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
    return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
  }],
  lanczos: [3, (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

const BITS = 22;  // weights are multiples of 2 ** -22, as in Pillow

/** Return for each new pixel of a part of a row the first old one that counts, and the weights from there on. */
function weighPixels(old, count, name, [begin, stop]) {
  const [reach, weigh] = FILTERS[name], scale = old / count, wide = Math.max(scale, 1), support = reach * wide;
  return Array.from({length: stop - begin}, (_, place) => {
    const center = (begin + place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const end = Math.min(old, Math.trunc(center + support + 0.5));
    const weights = Array.from({length: end - first}, (_, at) => weigh((at + first - center + 0.5) / wide));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return [first, Int32Array.from(weights, (weight) => roundAway(weight / sum * 2 ** BITS))];
  });
}

const roundAway = (value) => Math.trunc(value + (value < 0 ? -0.5 : 0.5));

/**
 * Resize along one axis of pixels, as Pillow does: in whole numbers, with all pixels that a new one covers.
 * @param {Uint8Array} pixels  Of which `channels` values belong together.
 * @param {number} lines  Rows before the axis.
 * @param {number} step  Values between two neighbors along the axis.
 * @param {number[]} part  The first new pixel that is needed, and the one after the last.
 */
function resizeAxis(pixels, lines, old, count, step, name, part) {
  const weighed = weighPixels(old, count, name, part);
  const resized = new Uint8ClampedArray(lines * weighed.length * step);
  for (let line = 0, to = 0; line < lines; line++) {
    for (let place = 0; place < weighed.length; place++) {
      const weights = weighed[place][1], from = (line * old + weighed[place][0]) * step, end = weights.length;
      for (let inner = from; inner < from + step; inner++) {
        let sum = 1 << (BITS - 1);
        for (let number = 0, at = inner; number < end; number++, at += step) sum += Math.imul(pixels[at], weights[number]);
        resized[to++] = sum >> BITS;
      }
    }
  }
  return resized;
}

/**
 * Resize pixels, and return a part of them.
 * @param {Uint8Array} pixels  (height, width, 3)
 * @param {number[]} rows  The first row of the part, and the one after the last; `columns` likewise. By default all.
 * @returns {Uint8ClampedArray} (rows, columns, 3)
 */
export function resizePixels(pixels, height, width, newHeight, newWidth, name, rows = [0, newHeight], columns = [0, newWidth]) {
  const wide = resizeAxis(pixels, height, width, newWidth, 3, name, columns);
  return resizeAxis(wide, 1, height, newHeight, 3 * (columns[1] - columns[0]), name, rows);
}

/** Round as Python does: halves to the even number. */
function roundHalfEven(value) {
  const low = Math.floor(value), rest = value - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}

/** Return where a crop from the middle begins; negative for padding. */
const findStart = (length, crop) =>
  crop > length ? -Math.floor((crop - length) / 2) : roundHalfEven((length - crop) / 2);

/**
 * Prepare a photo as the model was trained.
 * @param {Photo} photo
 * @param {Preparation} preparation
 * @returns {{tensor: Float32Array, geometry: Geometry}} The tensor is (3, height, width).
 */
export function preparePhoto(photo, preparation) {
  const {width, height, pixels} = photo, [cropHeight, cropWidth] = preparation.crop;
  let [newHeight, newWidth] = preparation.resized ?? [height, width];
  if (preparation.shorter_side) {
    const shorter = Math.min(height, width), longer = Math.trunc(preparation.shorter_side * Math.max(height, width) / shorter);
    [newHeight, newWidth] = height <= width ? [preparation.shorter_side, longer] : [longer, preparation.shorter_side];
  }
  const colors = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; from < pixels.length; from += 4) {
    colors[to++] = pixels[from]; colors[to++] = pixels[from + 1]; colors[to++] = pixels[from + 2];
  }
  const top = findStart(newHeight, cropHeight), left = findStart(newWidth, cropWidth);
  const rows = [Math.max(top, 0), Math.min(top + cropHeight, newHeight)];
  const columns = [Math.max(left, 0), Math.min(left + cropWidth, newWidth)], count = columns[1] - columns[0];
  const resized = resizePixels(colors, height, width, newHeight, newWidth, preparation.interpolation, rows, columns);
  const tensor = new Float32Array(3 * cropHeight * cropWidth);
  for (let channel = 0, at = 0; channel < 3; channel++) {
    const levels = Float32Array.from({length: 256}, (_, value) =>
      (Math.fround(value / 255) - preparation.mean[channel]) / preparation.std[channel]);
    for (let row = top; row < top + cropHeight; row++) {
      for (let column = left; column < left + cropWidth; column++) {
        const isInside = row >= rows[0] && row < rows[1] && column >= columns[0] && column < columns[1];
        tensor[at++] = levels[isInside ? resized[3 * ((row - rows[0]) * count + column - columns[0]) + channel] : 0];
      }
    }
  }
  const down = height / newHeight, across = width / newWidth;
  const box = [top * down, left * across, (top + cropHeight) * down, (left + cropWidth) * across];
  return {tensor, geometry: {box, size: [cropHeight, cropWidth]}};
}

// ------------------------------------------------------------------------------------------------------ explanation

/**
 * Explain a photo.
 * @param {Model} model
 * @param {Photo} photo
 * @param {number} classIndex  The class to explain; -1 for the one with the highest logit.
 * @returns {Promise<{index: number, logits: Float32Array, probabilities: number[], maps: Object<string, RawMap>,
 *                    geometry: Geometry}>} `maps` has the raw map of each method of the file.
 */
export async function explain(model, photo, classIndex = -1) {
  const {ort, session, description} = model;
  const {tensor, geometry} = preparePhoto(photo, description.preparation);
  const images = new ort.Tensor('float32', tensor, [1, 3, ...geometry.size]);
  const run = (index) => session.run({images, target_class: new ort.Tensor('int64', BigInt64Array.of(BigInt(index)), [1])});
  let results = await run(classIndex);
  const logits = readOutput(results, 'logits', [1, null]), probabilities = toProbabilities(logits, description.link);
  const index = classIndex >= 0 ? classIndex : probabilities.indexOf(Math.max(...probabilities));
  // The file takes a single output for a logit, whose top class is that of its sign.
  if (classIndex < 0 && logits.length === 1 && description.link === 'identity') results = await run(index);
  const maps = {}, grid = description.centers.map((line) => line.length);
  for (const [method, name] of Object.entries(description.outputs)) {
    maps[method] = {values: readOutput(results, name, [1, ...grid]), grid};
  }
  return {index, logits, probabilities, maps, geometry};
}

/** Return the values of an output with the lengths that the description says; null stands for any. */
function readOutput(results, name, lengths) {
  const {type, dims = [], data} = results[name] ?? {};
  const isRight = type === 'float32' && data.length > 0 && dims.length === lengths.length &&
    lengths.every((length, at) => length === null || length === dims[at]);
  if (isRight) return data;
  throw new Error(`The model's output ${name} is not as its description says, but ${type ?? 'missing'} ${dims.join(' x ')}`.trim() + '.');
}

/**
 * Return the probability of each class; of a single logit z those of "not" and of the class.
 * @param {Float32Array} logits
 * @param {"softmax"|"sigmoid"|"identity"} link  "sigmoid" for classes that do not exclude one another, "identity" if the
 *   model returns probabilities.
 */
export function toProbabilities(logits, link) {
  if (link === 'identity') return logits.length === 1 ? [1 - logits[0], logits[0]] : [...logits];
  if (logits.length === 1) return [toShare(-logits[0]), toShare(logits[0])];
  if (link === 'sigmoid') return Array.from(logits, toShare);
  const highest = Math.max(...logits), terms = Array.from(logits, (logit) => Math.exp(logit - highest));
  const sum = terms.reduce((total, term) => total + term, 0);
  return terms.map((term) => term / sum);
}

const toShare = (logit) => 1 / (1 + Math.exp(-logit));

/** Return the label of a class, or e.g. "class 7" if it has none. */
export function getLabel(description, index) {
  const labels = description.labels ?? [];
  // A model with a single logit has two classes.
  return (labels.length === 1 ? [`not ${labels[0]}`, labels[0]] : labels)[index] ?? `class ${index}`;
}

// ------------------------------------------------------------------------------------------------ from map to photo

const ROUNDING = 1e-6;

/**
 * Return how the pixels of a row or column of the photo are made of the cells of a map.
 *
 * Between the centers of cells values are linear. Beyond the outermost ones each cell covers half a stride, as on its
 * inner side, and fades to 0 within a stride, unless an edge of the input is as near.
 *
 * @returns {{first: Int32Array, low: Float64Array, high: Float64Array, inside: Uint8Array}}
 */
export function weighCells(pixels, start, stop, length, cells, center, stride) {
  const first = new Int32Array(pixels), low = new Float64Array(pixels), high = new Float64Array(pixels);
  const inside = new Uint8Array(pixels), last = cells - 1;
  // Cells of a mirrored input run backwards.
  const edges = [-center / stride, (length - center) / stride].sort((one, other) => one - other);
  for (let pixel = 0; pixel < pixels; pixel++) {
    const middle = pixel + 0.5;
    inside[pixel] = middle >= Math.min(start, stop) && middle <= Math.max(start, stop) ? 1 : 0;
    if (!inside[pixel]) continue;
    const place = ((middle - start) / (stop - start) * length - center) / stride;
    const held = Math.min(Math.max(place, 0), last);
    first[pixel] = Math.min(Math.floor(held), Math.max(last - 1, 0));
    let factor = 1;
    for (const [beyond, space] of [[-place, -edges[0]], [place - last, edges[1] - last]]) {
      if (space > 0.5 + ROUNDING) {
        const end = Math.min(space, 1);
        factor *= Math.min(Math.max((end - beyond) / (2 * end - 1), 0), 1);
      }
    }
    high[pixel] = factor * (held - first[pixel]);
    low[pixel] = factor * (1 - (held - first[pixel]));
  }
  return {first, low, high, inside};
}

/** Return the lowest and the highest value; null if they are equal but for rounding, or not finite. */
function findLimits(values, isCounted = () => true) {
  let lowest = Infinity, highest = -Infinity;
  for (let at = 0; at < values.length; at++) {
    if (!isCounted(at)) continue;
    if (Number.isNaN(values[at])) return null;
    lowest = Math.min(lowest, values[at]);
    highest = Math.max(highest, values[at]);
  }
  const rounding = 16 * 2 ** -23 * Math.max(Math.abs(lowest), Math.abs(highest));
  return rounding < highest - lowest && highest - lowest <= 3.4e38 ? [lowest, highest] : null;
}

/**
 * Place a raw map on the photo: each cell at the center of what it sees, from 0 to 1.
 * @param {RawMap} map
 * @param {object} description  Of the model: the centers of the cells.
 * @param {Geometry} geometry
 * @returns {{heat: Float32Array, rows: Uint8Array, columns: Uint8Array, isConstant: boolean}} `heat` is
 *   (height, width); `rows` and `columns` are 1 where the model saw them;
 *   `isConstant` tells that the raw map is the same everywhere, so the heat is 0.
 */
export function placeMap(map, description, geometry, height, width) {
  const {values, grid} = map, limits = findLimits(values);
  const [top, left, bottom, right] = geometry.box;
  const axis = (number, pixels, start, stop) => weighCells(pixels, start, stop, geometry.size[number], grid[number],
    description.centers[number][0], description.strides[number]);
  const rows = axis(0, height, top, bottom), columns = axis(1, width, left, right);
  const heat = new Float32Array(height * width);
  const placed = {heat, rows: rows.inside, columns: columns.inside, isConstant: limits === null};
  if (limits === null) return placed;
  const cells = Float64Array.from(values, (value) => value - limits[0]);
  const line = new Float64Array(grid[1] + 1), next = grid[0] > 1 ? grid[1] : 0;
  for (let row = 0; row < height; row++) {
    if (!rows.inside[row]) continue;
    const at = rows.first[row] * grid[1];
    for (let column = 0; column < grid[1]; column++) {
      line[column] = rows.low[row] * cells[at + column] + rows.high[row] * cells[at + next + column];
    }
    for (let column = 0; column < width; column++) {
      const cell = columns.first[column];
      heat[row * width + column] = columns.low[column] * line[cell] + columns.high[column] * line[cell + 1];
    }
  }
  const isSeen = (pixel) => rows.inside[Math.floor(pixel / width)] === 1 && columns.inside[pixel % width] === 1;
  const seen = findLimits(heat, isSeen);
  if (seen === null) return {...placed, heat: heat.fill(0)};
  for (let pixel = 0; pixel < heat.length; pixel++) {
    heat[pixel] = isSeen(pixel) ? (heat[pixel] - seen[0]) / (seen[1] - seen[0]) : 0;
  }
  return placed;
}

// ------------------------------------------------------------------------------------------------------- drawing

const UNSEEN_GRAY = 112, UNSEEN_SHARE = 0.55, BORDER_GRAY = 184, BORDERS_PER_SIDE = 180;

/** Return the opacity of a heat, from 0 to 1: with "heat" it rises up to the peak, else up to one half. */
export function toOpacity(heat, colormap) {
  if (colormap === 'heat') return heat * Math.sqrt(heat);
  const t = Math.min(1, 2 * heat);
  return t * t * (3 - 2 * t);
}

/** Draw what the model did not see in gray, behind a light line, into RGBA pixels. */
function drawUnseen(drawn, photo, rows, columns) {
  const {width, height, pixels} = photo;
  const [top, bottom] = [rows.indexOf(1), rows.lastIndexOf(1)], [left, right] = [columns.indexOf(1), columns.lastIndexOf(1)];
  const line = Math.max(1, Math.floor(Math.max(1, roundHalfEven(Math.min(width, height) / BORDERS_PER_SIDE)) / 2));
  for (let row = 0, at = 0; row < height; row++) {
    for (let column = 0; column < width; column++, at += 4) {
      if (rows[row] && columns[column]) continue;
      const isNear = row >= top - line && row <= bottom + line && column >= left - line && column <= right + line;
      const gray = Math.round(0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2]);
      const level = isNear ? BORDER_GRAY : Math.round((1 - UNSEEN_SHARE) * gray + UNSEEN_SHARE * UNSEEN_GRAY);
      drawn[at] = drawn[at + 1] = drawn[at + 2] = level;
    }
  }
}

/**
 * Draw a heatmap over a photo.
 * @param {Photo} photo
 * @param {ReturnType<typeof placeMap>} placed
 * @param {Uint8Array} palette  256 colors, RGB.
 * @param {{colormap?: string, alpha?: number, view?: "overlay"|"heatmap"|"masked"}} look
 * @returns {Uint8ClampedArray} RGBA
 */
export function drawHeat(photo, placed, palette, {colormap = 'heat', alpha = 0.7, view = 'overlay'} = {}) {
  const {pixels} = photo, drawn = new Uint8ClampedArray(pixels);
  for (let pixel = 0, at = 0; pixel < placed.heat.length; pixel++, at += 4) {
    const heat = placed.heat[pixel], color = 3 * roundHalfEven(255 * heat);
    const opacity = view === 'heatmap' ? 1 : alpha * toOpacity(heat, colormap);
    for (let channel = 0; channel < 3; channel++) {
      const value = pixels[at + channel];
      drawn[at + channel] = view === 'masked' ? value * heat : value + (palette[color + channel] - value) * opacity;
    }
  }
  if (view === 'overlay') drawUnseen(drawn, photo, placed.rows, placed.columns);
  return drawn;
}

// ------------------------------------------------------------------------------------------------------ contours

const LEVELS = 256, HAIR = 1e-9, WIDTHS_PER_SIDE = 320;

/**
 * Return Otsu's threshold of a heatmap from 0 to 1, as scikit-image does.
 * @param {Float32Array} heat
 */
export function findThreshold(heat) {
  const counts = new Float64Array(LEVELS);
  heat.forEach((value) => { counts[Math.min(LEVELS - 1, Math.floor(value * LEVELS))] += 1; });
  const center = (level) => (level + 0.5) / LEVELS;
  let below = 0, sumBelow = 0, highest = -1, best = 0;
  const total = counts.reduce((sum, count, level) => sum + count * center(level), 0);
  for (let level = 0; level < LEVELS - 1; level++) {
    below += counts[level];
    sumBelow += counts[level] * center(level);
    const above = heat.length - below, apart = sumBelow / below - (total - sumBelow) / above;
    const variance = below * above * apart * apart;
    if (variance > highest) [highest, best] = [variance, level];
  }
  return center(best);
}

/** For each of 16 squares, by which of its corners are hot: the sides that lines connect. */
const LINES = ['', 'TL', 'RT', 'RL', 'LB', 'TB', 'LTRB', 'RB', 'BR', 'TRBL', 'BT', 'BL', 'LR', 'TR', 'LT', ''];

/**
 * Find the outlines of the regions with heat at or above a threshold, to parts of a pixel.
 * @param {Float32Array} heat  (height, width), from 0 to 1
 * @param {number} threshold  By default Otsu's.
 * @returns {number[][]} Lines [x0, y0, x1, y1], in no order; (0, 0) is the center of the first pixel. Empty if the heat is
 *   the same everywhere.
 */
export function findContours(heat, height, width, threshold = undefined) {
  const lines = [];
  if (heat.every((value) => value === heat[0])) return lines;
  const level = (threshold ?? findThreshold(heat)) - HAIR;
  const read = (row, column) =>  // a border of cold pixels closes the outlines
    (row < 0 || column < 0 || row >= height || column >= width ? -1 : heat[row * width + column]);
  const mix = (from, to) => (from === to ? 0 : (level - from) / (to - from));
  const hold = (value, last) => Math.min(Math.max(value, 0), last);
  for (let row = -1; row < height; row++) {
    for (let column = -1, a, c, b = read(row, -1), d = read(row + 1, -1); column < width; column++) {
      [a, c, b, d] = [column < 0 ? -1 : b, column < 0 ? -1 : d, read(row, column + 1), read(row + 1, column + 1)];
      const sides = LINES[(a > level) + 2 * (b > level) + 4 * (c > level) + 8 * (d > level)];
      for (let at = 0; at < sides.length; at += 2) {
        lines.push([sides[at], sides[at + 1]].flatMap((side) => {
          const x = side === 'L' ? column : side === 'R' ? column + 1 : column + (side === 'T' ? mix(a, b) : mix(c, d));
          const y = side === 'T' ? row : side === 'B' ? row + 1 : row + (side === 'L' ? mix(a, c) : mix(b, d));
          return [hold(x, width - 1), hold(y, height - 1)];
        }));
      }
    }
  }
  return lines;
}

/**
 * Draw the outlines of the hottest regions on a photo: white lines with a black halo.
 * @param {Photo} photo
 * @param {ReturnType<typeof placeMap>} placed
 * @returns {Uint8ClampedArray} RGBA
 */
export function drawContours(photo, placed) {
  const {width, height, pixels} = photo, lines = findContours(placed.heat, height, width);
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext('2d', {willReadFrequently: true});
  context.putImageData(new ImageData(pixels, width, height), 0, 0);
  const thick = Math.max(1, roundHalfEven(Math.min(width, height) / WIDTHS_PER_SIDE));
  const full = thick + 2 * Math.max(1, Math.floor(thick / 2));
  const move = (value, length) => {  // half of a line along the border would be outside of the photo
    const margin = Math.min(full, length - 1) / 2;
    return Math.min(Math.max(value, margin), length - 1 - margin) + 0.5;
  };
  context.beginPath();
  for (const [x0, y0, x1, y1] of lines) {
    context.moveTo(move(x0, width), move(y0, height));
    context.lineTo(move(x1, width), move(y1, height));
  }
  context.lineCap = 'round';
  for (const [color, thickness] of [['black', full], ['white', thick]]) {
    // OpenCV, which draws them in Python, makes smooth lines wider than it is told to.
    Object.assign(context, {strokeStyle: color, lineWidth: thickness === 1 ? 1.25 : 2 * Math.ceil(thickness / 2) + 1.4});
    context.stroke();
  }
  return context.getImageData(0, 0, width, height).data;
}
