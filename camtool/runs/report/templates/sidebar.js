// The filters beside the grid, the chips of those that are active, and the order.

const FEW_OPTIONS = 9;
const BINS = 20;

/** Functions that show the present state in a facet. */
const facetUpdates = [];

function buildSidebar(onChange) {
  for (const column of facets) {
    $('facets').append(column.kind === 'percent' ? buildRange(column, onChange) : buildList(column, onChange));
  }
  $('sort').append(make('option', { value: '', text: 'Order of the run' }));
  for (const { key, title } of sortColumns) $('sort').append(make('option', { value: key, text: title }));
}

function updateSidebar() {
  for (const update of facetUpdates) update();
  $('sort').value = state.sort;
  $('direction').setAttribute('aria-pressed', String(state.descending));
  $('search').value = state.query;
}

// ------------------------------------------------------------------------------------------------ a list of options

/** Return all options of a facet as pairs of a value and a title, the most frequent first. */
function listOptions(column) {
  const total = new Map();
  for (let row = 0; row < rowCount; row++) {
    for (const option of optionsOf(column, row)) total.set(option, (total.get(option) ?? 0) + 1);
  }
  const titles = new Map(data.warningKinds.map(({ key, title }) => [key, title]));
  titles.set(ANY_WARNING, 'Any warning').set(NO_WARNING, 'No warning');
  const isWarning = column.kind === 'warnings';
  // "Any" and "none" are not kinds: they stay on top.
  const weigh = (option) => (isWarning && option === ANY_WARNING ? Infinity : isWarning && option === NO_WARNING ? 1e12
    : total.get(option));
  const options = [...total.keys()].sort((a, b) => weigh(b) - weigh(a));
  return options.map((option) => [option, isWarning ? titles.get(option) : option]);
}

function buildList(column, onChange) {
  const options = listOptions(column);
  const list = make('div', { class: 'options' });
  const boxes = options.map(([option, title]) => buildOption(column, option, title, onChange));
  list.append(...boxes.map(({ element }) => element));
  const update = () => {
    for (const box of boxes) {
      const fitting = optionCounts[column.key].get(box.option) ?? 0;
      const isChosen = state.choices[column.key].has(box.option);
      // A list may hold a thousand options, of which few change.
      if (fitting === box.fitting && isChosen === box.isChosen) continue;
      Object.assign(box, { fitting, isChosen });
      box.input.checked = isChosen;
      showCount(box);
    }
  };
  facetUpdates.push(update);
  const isLong = options.length > FEW_OPTIONS;
  list.classList.toggle('long', isLong);
  return make('fieldset', { class: 'facet' }, make('legend', { text: column.title }),
    isLong && buildOptionSearch(column, boxes), list);
}

function showCount({ title, fitting, input, number, element }) {
  number.textContent = formatInteger(fitting);
  input.setAttribute('aria-label', `${title}, ${formatInteger(fitting)}`);
  element.classList.toggle('unfit', fitting === 0 && !input.checked);
}

function buildOption(column, option, title, onChange) {
  const input = make('input', { type: 'checkbox' });
  const number = make('span', { class: 'number' });
  input.addEventListener('change', () => {
    const chosen = state.choices[column.key];
    if (input.checked) chosen.add(option);
    else chosen.delete(option);
    onChange();
  });
  const mark = column.key === 'verdict' ? makeIcon(option === 'Right' ? 'right' : 'wrong') : null;
  const name = make('span', { class: 'name', title, text: title });
  const verdict = column.key === 'verdict' ? ` ${option.toLowerCase()}` : '';
  const element = make('label', { class: `option${verdict}` }, input, mark, name, number);
  return { option, title, fitting: null, isChosen: false, input, number, element };
}

/** Return a field that narrows a long list of options. */
function buildOptionSearch(column, boxes) {
  const name = `Find in ${countOf(boxes.length, 'option')}`;
  const field = make('input', { type: 'search', class: 'field', placeholder: name });
  field.setAttribute('aria-label', `${column.title}: ${name.toLowerCase()}`);
  field.addEventListener('input', () => {
    const word = field.value.trim().toLowerCase();
    for (const { title, element } of boxes) element.hidden = !title.toLowerCase().includes(word);
  });
  return field;
}

// ----------------------------------------------------------------------------------------------------- a range

function buildRange(column, onChange) {
  const bars = buildHistogram(data.values[column.key]);
  const text = make('output', { class: 'range-text' });
  const inputs = ['lowest', 'highest'].map((which, end) => buildEnd(column, which, end, onChange));
  const update = () => {
    const [least, most] = state.ranges[column.key];
    inputs[0].value = least;
    inputs[1].value = most;
    text.textContent = `${Math.round(least * 100)}–${Math.round(most * 100)}%`;
    bars.forEach((bar, bin) => {
      bar.classList.toggle('outside', (bin + 1) / BINS <= least || bin / BINS >= most);
    });
  };
  facetUpdates.push(update);
  const histogram = make('div', { class: 'histogram', 'aria-hidden': 'true' }, ...bars);
  return make('fieldset', { class: 'facet' }, make('legend', {}, column.title, text), histogram,
    make('div', { class: 'range' }, ...inputs));
}

function buildEnd(column, which, end, onChange) {
  const input = make('input', { type: 'range', min: 0, max: 1, step: 0.01 });
  input.setAttribute('aria-label', `${column.title}, ${which}`);
  input.addEventListener('input', () => {
    const range = [...state.ranges[column.key]];
    // The two ends do not cross.
    range[end] = end ? Math.max(Number(input.value), range[0]) : Math.min(Number(input.value), range[1]);
    state.ranges[column.key] = range;
    onChange();
  });
  return input;
}

function buildHistogram(values) {
  const counts = new Array(BINS).fill(0);
  for (const value of values) if (value !== null) counts[Math.min(BINS - 1, Math.max(0, Math.floor(value * BINS)))]++;
  const most = Math.max(...counts, 1);
  return counts.map((count) => {
    const bar = make('span');
    // The root lets bins with a few rows be seen beside one with thousands.
    bar.style.blockSize = `${count ? Math.max(4, 100 * Math.sqrt(count / most)) : 0}%`;
    return bar;
  });
}

// ----------------------------------------------------------------------------------------------------- chips

/** Show a button for each active filter that removes it. */
function updateChips(onChange) {
  const chips = [];
  const add = (text, remove) => chips.push(buildChip(text, () => { remove(); onChange(); }));
  if (state.query.trim()) add(`“${state.query.trim()}”`, () => { state.query = ''; });
  for (const column of facets) {
    if (column.kind === 'percent') {
      const [least, most] = state.ranges[column.key];
      const text = `${column.title} ${Math.round(least * 100)}–${Math.round(most * 100)}%`;
      if (least > 0 || most < 1) add(text, () => { state.ranges[column.key] = [0, 1]; });
    } else {
      const titles = new Map(listOptions(column));
      for (const option of state.choices[column.key]) {
        add(titles.get(option) ?? option, () => state.choices[column.key].delete(option));
      }
    }
  }
  if (chips.length > 1) {
    chips.push(make('button', { class: 'text-button', text: 'Clear all',
      onclick: () => { clearFilters(); onChange(); } }));
  }
  $('chips').replaceChildren(...chips);
}

function buildChip(text, remove) {
  return make('button', { class: 'chip', onclick: remove, 'aria-label': `${text}, remove this filter` },
    make('span', { class: 'name', text }), makeIcon('close'));
}
