// The large view: photo and overlay with a slider between them, numbers, warnings, other maps of the same photo.

const viewer = $('viewer');
const slider = $('slider');
let openRow = null;
let pictureKind = null; // which picture of the row, e.g. "mask"; null for the main one

/** Show a row. A new entry of the browser's history makes "back" close the view. */
function openViewer(row, { isNew = true } = {}) {
  openRow = row;
  if (!viewer.open) {
    if (isNew) history.pushState({ isOpen: true }, '', buildHash(row));
    viewer.showModal();
    viewer.focus(); // not a button of it, so that arrows and the space bar work at once
    document.documentElement.classList.add('behind');
  } else {
    history.replaceState(history.state, '', buildHash(row));
  }
  fillViewer();
}

function closeViewer() {
  // The entry that opening made is taken back; "close" then finds the address without the row.
  if (history.state?.isOpen) history.back();
  else history.replaceState(null, '', buildHash());
  viewer.close();
}

viewer.addEventListener('close', () => {
  document.documentElement.classList.remove('behind');
  const place = shown.indexOf(openRow);
  openRow = null;
  if (place >= 0) focusPlace(place);
});

viewer.addEventListener('cancel', (event) => {
  event.preventDefault();
  closeViewer();
});

function step(by) {
  const place = shown.indexOf(openRow);
  const next = place < 0 ? 0 : place + by;
  if (next >= 0 && next < shown.length) openViewer(shown[next]);
}

function fillViewer() {
  const place = shown.indexOf(openRow);
  $('position').textContent = place < 0 ? 'Not among the filtered'
    : `${formatInteger(place + 1)} of ${formatInteger(shown.length)}`;
  // Not "disabled": a disabled button loses the focus, and then the keys do nothing.
  $('previous').setAttribute('aria-disabled', String(place <= 0));
  $('next').setAttribute('aria-disabled', String(place === shown.length - 1));
  fillStage();
  fillPanel();
  for (const near of [place - 1, place + 1]) preload(shown[near]);
}

function preload(row) {
  if (row === undefined) return;
  for (const url of [getPicture(row), getPhoto(row)]) if (url) new Image().src = url;
}

// ----------------------------------------------------------------------------------------------------------- stage

/** Show the pictures: over each other if they have the same proportions, otherwise side by side. */
function fillStage() {
  const pictures = data.pictures[openRow];
  const [kind, url] = pictures.find(([each]) => each === pictureKind) ?? pictures[0] ?? [null, null];
  const photo = getPhoto(openRow);
  const isPlaced = Boolean(data.placed[openRow] && photo && url);
  const stage = $('stage');
  stage.classList.toggle('placed', isPlaced);
  stage.style.setProperty('--ratio', data.ratios[openRow] ?? 1);
  $('stage-note').textContent = describeStage(url, photo, isPlaced);
  setImage($('photo'), photo, `Photo ${getName(openRow)}`, () => {
    stage.classList.remove('placed');
    $('photo').hidden = true;
    $('stage-note').textContent = PHOTO_MISSING;
  });
  setImage($('picture'), url, kind === 'overlay' ? describePicture(openRow) : `${kind}: ${describePicture(openRow)}`,
    () => { $('stage-note').textContent = 'The picture is not found beside this page.'; });
  updateSlider();
}

const PHOTO_MISSING = 'The photo cannot be shown: it is not where the run found it, or it is no picture, e.g. a volume. '
  + 'camtool report RUN --photos FOLDER says where it is now; --copy-photos puts a copy beside the page.';

function describeStage(url, photo, isPlaced) {
  if (!url) return 'The run saved no picture of this map.';
  if (!photo) return PHOTO_MISSING;
  if (isPlaced) return '';
  return read('cells', openRow)
    ? `The map at the layer's size, ${read('cells', openRow)} cells. Its place on the photo is not stored.`
    : 'Photo and picture have different proportions, so they are not laid over each other.';
}

function setImage(image, url, text, onError) {
  image.hidden = !url;
  image.onerror = url ? onError : null;
  image.alt = text;
  if (url) image.src = url;
  else image.removeAttribute('src');
}

function updateSlider() {
  $('stage').style.setProperty('--split', `${slider.value}%`);
  slider.setAttribute('aria-valuetext', `${slider.value}% photo, ${100 - slider.value}% overlay`);
}

/** Show the photo alone, or go back to the last position of the slider. */
function togglePhoto() {
  const isPhoto = Number(slider.value) === 100;
  if (!isPhoto) slider.dataset.last = slider.value;
  slider.value = isPhoto ? slider.dataset.last ?? 30 : 100;
  updateSlider();
}

slider.addEventListener('input', updateSlider);

// ----------------------------------------------------------------------------------------------------------- panel

function fillPanel() {
  const probability = read('probability', openRow);
  $('viewer-title').textContent = read('label', openRow) || 'Explanation';
  $('viewer-percent').textContent = probability === null ? '' : `${(probability * 100).toFixed(1)}%`;
  $('viewer-bar').hidden = probability === null;
  $('viewer-bar').style.setProperty('--part', probability ?? 0);
  $('viewer-verdict').replaceChildren(...buildVerdict());
  $('viewer-file').textContent = read('image', openRow);
  $('switches').replaceChildren(...buildSwitches());
  $('viewer-warnings').replaceChildren(...data.warnings[openRow].map(buildWarning));
  $('numbers').replaceChildren(...buildNumbers());
  $('links').replaceChildren(...buildLinks());
}

function buildVerdict() {
  const verdict = read('verdict', openRow);
  if (!verdict) return [];
  const [predicted, truth] = [read('predicted', openRow), read('truth', openRow)];
  const text = verdict === 'Right' ? 'Right' : truth ? `Wrong: the photo shows ${truth}` : 'Wrong';
  const explained = predicted && predicted !== read('label', openRow) ? `; the model predicts ${predicted}` : '';
  return [make('span', { class: `verdict ${verdict.toLowerCase()}` }, makeIcon(verdict === 'Right' ? 'right' : 'wrong'),
    text + explained)];
}

/** Return switches between the maps of this photo: methods of this class, classes of this method, kinds of pictures. */
function buildSwitches() {
  const others = rowsOfGroup[data.groups[openRow]];
  const methods = pickOnePer(['method', 'layer'], others.filter((row) => isLikeOpen(row, ['label', 'index', 'box'])));
  const targets = pickOnePer(['label', 'index', 'box'], others.filter((row) => isLikeOpen(row, ['method', 'layer'])));
  const kinds = data.pictures[openRow].map(([kind]) => kind);
  const shownKind = kinds.includes(pictureKind) ? pictureKind : kinds[0];
  return [
    buildSwitch('Method', methods.map((row) => [read('method', row), row === openRow,
      () => openViewer(row)])),
    buildSwitch('Class', targets.map((row) => [nameTarget(row), row === openRow, () => openViewer(row)])),
    buildSwitch('Picture', kinds.map((kind) => [kind, kind === shownKind, () => { pictureKind = kind; fillViewer(); }])),
  ].filter(Boolean);
}

const isLikeOpen = (row, keys) => keys.every((key) => read(key, row) === read(key, openRow));

/** Return one row for each combination of values; a run that was asked for "top1" and "top2" has a class twice. */
function pickOnePer(keys, rows) {
  const picked = new Map();
  for (const row of rows) {
    const name = JSON.stringify(keys.map((key) => read(key, row)));
    if (!picked.has(name) || row === openRow) picked.set(name, row);
  }
  return [...picked.values()];
}

function nameTarget(row) {
  const probability = read('probability', row);
  return `${read('label', row) ?? 'target'}${probability === null ? '' : ` ${formatPercent(probability)}`}`;
}

function buildSwitch(title, options) {
  if (options.length < 2) return null;
  const buttons = options.map(([text, isOn, choose]) => {
    const button = make('button', { class: 'segment', 'aria-pressed': String(isOn), text });
    button.addEventListener('click', () => {
      choose();
      // The buttons are new; the keyboard stays where it was.
      [...$('switches').querySelectorAll('.segment')].find((each) => each.textContent === text)?.focus();
    });
    return button;
  });
  return make('div', { class: 'switch', role: 'group', 'aria-label': title },
    make('span', { class: 'switch-title', 'aria-hidden': 'true', text: title }),
    make('div', { class: 'segments' }, ...buttons));
}

/** Go to the next method of the same photo and class. */
function cycleMethod() {
  const buttons = [...$('switches').querySelectorAll('[aria-label=Method] .segment')];
  const now = buttons.findIndex((button) => button.getAttribute('aria-pressed') === 'true');
  if (buttons.length) buttons[(now + 1) % buttons.length].click();
}

function buildWarning(place) {
  const [text, kind] = data.warningTexts[place];
  const { remedy, title, key, severity } = data.warningKinds[kind];
  const isCoded = title !== key;
  return make('li', { class: `warning ${severity === 'warning' ? 'serious' : 'note'}` }, makeIcon('warning'),
    make('div', {}, isCoded && make('strong', { text: title }), make('p', { text }),
      remedy && make('p', { class: 'remedy', text: remedy })));
}

/** Return name and value of each column that has a value and is not shown above. */
function buildNumbers() {
  const above = new Set(['label', 'verdict', 'warnings', 'image']);
  return columns.flatMap((column) => {
    const value = above.has(column.key) ? null : read(column.key, openRow);
    if (value === null) return [];
    return [make('dt', { text: column.title }), make('dd', { text: formatValue(column, value) })];
  });
}

function buildLinks() {
  const photo = getPhoto(openRow);
  const links = data.pictures[openRow].map(([kind, url]) => [`Open ${kind}`, url]);
  if (photo) links.unshift(['Open photo', photo]);
  return links.map(([text, href]) => make('a', { href, target: '_blank', rel: 'noopener noreferrer', text }));
}

viewer.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isOnControl = event.target.closest('button, a, summary');
  if (event.target !== slider && event.key === 'ArrowRight') step(1);
  else if (event.target !== slider && event.key === 'ArrowLeft') step(-1);
  else if (event.key === ' ' && !isOnControl) togglePhoto();
  else if (event.key === 'm') cycleMethod();
  else return;
  event.preventDefault();
});
$('previous').addEventListener('click', () => step(-1));
$('next').addEventListener('click', () => step(1));
$('close').addEventListener('click', closeViewer);
