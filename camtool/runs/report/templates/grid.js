// The grid. Only the tiles in view exist as elements, so thousands of rows cost as much as a screenful.

const GAP = 16;
const CAPTION = 58;
const ROWS_BEYOND = 2; // rendered above and below the window
const PHONE_WIDTH = 560;

const grid = $('grid');
const tiles = new Map(); // place among the shown rows → element
let size = { perRow: 1, width: 0, rowHeight: 0 };
let focused = 0; // the place that Tab reaches

const getTileWidth = () => Number($('tile-size').value);

/** Compute the columns for the window's width. */
function layOutGrid() {
  const available = grid.clientWidth;
  const gap = available < PHONE_WIDTH ? 10 : GAP;
  const wanted = available < PHONE_WIDTH ? 150 : getTileWidth();
  const perRow = Math.max(1, Math.floor((available + gap) / (wanted + gap)));
  const width = (available - gap * (perRow - 1)) / perRow;
  const frame = Math.round(width / data.tileRatio);
  size = { perRow, width, gap, frame, rowHeight: frame + CAPTION + gap };
  grid.style.setProperty('--frame', `${frame}px`);
  grid.style.blockSize = `${Math.ceil(shown.length / perRow) * size.rowHeight}px`;
}

/** Show other rows, or the same in another order. */
function resetGrid() {
  for (const tile of tiles.values()) tile.remove();
  tiles.clear();
  focused = Math.min(focused, Math.max(0, shown.length - 1));
  layOutGrid();
  renderGrid();
}

/** Add the tiles that came into view, and remove those that left it. */
function renderGrid() {
  const top = -grid.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(top / size.rowHeight) - ROWS_BEYOND) * size.perRow;
  const last = Math.min(shown.length, (Math.ceil((top + innerHeight) / size.rowHeight) + ROWS_BEYOND) * size.perRow);
  for (const [place, tile] of tiles) {
    // The focused tile stays, or the keyboard would lose its place.
    if ((place < first || place >= last) && !tile.contains(document.activeElement)) {
      tile.remove();
      tiles.delete(place);
    }
  }
  for (let place = first; place < last; place++) {
    if (!tiles.has(place)) addTile(place);
  }
}

function addTile(place) {
  const tile = buildTile(place);
  tiles.set(place, tile);
  // In the order of the rows, for screen readers.
  const next = [...tiles.keys()].filter((other) => other > place).reduce((a, b) => Math.min(a, b), Infinity);
  grid.insertBefore(tile, tiles.get(next) ?? null);
}

function buildTile(place) {
  const row = shown[place];
  const link = make('a', { class: 'tile', href: buildHash(row), tabindex: place === focused ? 0 : -1 },
    buildFrame(row), buildCaption(row));
  link.setAttribute('aria-label', describeRow(row));
  link.addEventListener('focus', () => moveFocus(place));
  link.addEventListener('click', (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window
    event.preventDefault();
    openViewer(row);
  });
  const item = make('li', { class: 'cell', 'aria-posinset': place + 1, 'aria-setsize': shown.length }, link);
  item.style.inlineSize = `${size.width}px`;
  const [column, line] = [place % size.perRow, Math.floor(place / size.perRow)];
  item.style.transform = `translate(${column * (size.width + size.gap)}px, ${line * size.rowHeight}px)`;
  return item;
}

function buildFrame(row) {
  const url = getThumbnail(row);
  const frame = make('span', { class: 'frame' });
  if (url === null) frame.append(make('span', { class: 'nothing', text: 'No picture saved' }));
  else {
    const image = make('img', { loading: 'lazy', decoding: 'async', alt: describePicture(row) });
    image.addEventListener('load', () => frame.classList.add('loaded'));
    image.addEventListener('error', () => frame.replaceChildren(
      make('span', { class: 'nothing', text: 'Picture not found' })));
    image.src = url;
    frame.append(image);
  }
  const severity = SEVERITIES.find((each) => countSeverity(row, each));
  if (severity) {
    frame.append(make('span', { class: `badge ${severity === 'warning' ? 'serious' : 'note'}` }, makeIcon('warning'),
      String(countSeverity(row, severity))));
  }
  return frame;
}

const describePicture = (row) => `Heatmap of ${read('method', row)} for ${read('label', row)} on ${getName(row)}`;

function buildCaption(row) {
  const probability = read('probability', row);
  const verdict = read('verdict', row);
  const truth = read('truth', row);
  const top = make('span', { class: 'line' },
    verdict && make('span', { class: `verdict ${verdict.toLowerCase()}` },
      makeIcon(verdict === 'Right' ? 'right' : 'wrong')),
    make('span', { class: 'label', text: read('label', row) ?? '' }),
    probability !== null && make('span', { class: 'percent', text: formatPercent(probability) }));
  const bottom = make('span', { class: 'line second' },
    verdict === 'Wrong' && truth ? make('span', { class: 'truth', text: `true: ${truth}` })
      : make('span', { class: 'file', text: getName(row) }),
    hasMethods && make('span', { class: 'method', text: read('method', row) }));
  return make('span', { class: 'caption' }, top, bottom);
}

// -------------------------------------------------------------------------------------------------------- keyboard

/** Make a place the one that Tab reaches. */
function moveFocus(place) {
  tiles.get(focused)?.firstChild.setAttribute('tabindex', '-1');
  focused = place;
  tiles.get(place)?.firstChild.setAttribute('tabindex', '0');
}

/** Scroll to a place and focus its tile. */
function focusPlace(place) {
  const line = Math.floor(place / size.perRow);
  const top = grid.getBoundingClientRect().top + scrollY + line * size.rowHeight;
  const bar = $('toolbar').offsetHeight;
  if (top - bar - 8 < scrollY) scrollTo({ top: top - bar - 8 });
  else if (top + size.rowHeight > scrollY + innerHeight) scrollTo({ top: top + size.rowHeight - innerHeight });
  renderGrid();
  moveFocus(place);
  tiles.get(place)?.firstChild.focus({ preventScroll: true });
}

grid.addEventListener('keydown', (event) => {
  const page = size.perRow * Math.max(1, Math.floor(innerHeight / size.rowHeight));
  const steps = {
    ArrowRight: 1, ArrowLeft: -1, ArrowDown: size.perRow, ArrowUp: -size.perRow,
    PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
  };
  if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  focusPlace(Math.min(shown.length - 1, Math.max(0, focused + steps[event.key])));
});
