// What is asked for (search, filters, order), the rows that fit, and the part of the address that keeps it.

const NO_WARNING = 'none';
const ANY_WARNING = 'any';

const state = { query: '', sort: '', descending: false, view: 'explanations', choices: {}, ranges: {} };

/** The rows that fit, in order. */
let shown = [];

/** Facet → option → how many rows fit if it is chosen, all other filters as they are. */
let optionCounts = {};

const facets = columns.filter((column) => column.is_filter && isWorthFiltering(column));
const listFacets = facets.filter((column) => column.kind !== 'percent');
for (const { key, kind } of facets) {
  if (kind === 'percent') state.ranges[key] = [0, 1];
  else state.choices[key] = new Set();
}

const sortColumns = columns.filter((column) => column.is_sort && isWorthSorting(column));

function isWorthFiltering(column) {
  if (column.kind === 'warnings') return data.warningKinds.length > 0;
  if (column.kind === 'percent') return data.values[column.key].some((value) => value !== null);
  return hasSeveral(column.key);
}

function isWorthSorting(column) {
  if (column.kind === 'text') return hasSeveral(column.key);
  return new Set(data.values[column.key]).size > 1;
}

/** Return the options of a facet that a row belongs to. */
function optionsOf(column, row) {
  if (column.kind !== 'warnings') {
    const code = data.values[column.key].codes[row];
    return code < 0 ? [] : [data.values[column.key].texts[code]];
  }
  const kinds = kindsOf(row).map((place) => data.warningKinds[place].key);
  return [countSeverity(row, 'warning') ? ANY_WARNING : NO_WARNING, ...kinds];
}

// ------------------------------------------------------------------------------------------------------- filtering

/** Return one test for each active filter; each is a pair of its name and a function of the row. */
function buildTests() {
  const tests = [];
  if (state.query.trim()) tests.push(['query', buildSearch(state.query)]);
  for (const column of facets) {
    if (column.kind === 'percent') {
      const [least, most] = state.ranges[column.key];
      const values = data.values[column.key];
      const fits = (row) => values[row] !== null && values[row] >= least && values[row] <= most;
      if (least > 0 || most < 1) tests.push([column.key, fits]);
    } else if (state.choices[column.key].size) {
      const chosen = state.choices[column.key];
      tests.push([column.key, (row) => optionsOf(column, row).some((option) => chosen.has(option))]);
    }
  }
  return tests;
}

/** Return a test whether each word is in some text of the row. Every distinct text is searched once. */
function buildSearch(query) {
  const searched = columns.filter((column) => column.is_searched);
  const perWord = query.toLowerCase().trim().split(/\s+/).map((word) => {
    const found = searched.map(({ key }) => data.values[key].texts.map((text) => text.toLowerCase().includes(word)));
    const warned = data.warningTexts.map(([text, kind]) =>
      `${text} ${data.warningKinds[kind].key}`.toLowerCase().includes(word));
    return (row) => searched.some(({ key }, place) => found[place][data.values[key].codes[row]])
      || data.warnings[row].some((warning) => warned[warning]);
  });
  return (row) => perWord.every((matches) => matches(row));
}

/** Find the rows that fit, and count the options of each facet in the same pass. */
function refilter() {
  const tests = buildTests();
  const count = (column, row) => {
    for (const option of optionsOf(column, row)) {
      optionCounts[column.key].set(option, (optionCounts[column.key].get(option) ?? 0) + 1);
    }
  };
  optionCounts = Object.fromEntries(listFacets.map((column) => [column.key, new Map()]));
  shown = [];
  for (let row = 0; row < rowCount; row++) {
    const failed = tests.filter(([, fits]) => !fits(row));
    if (failed.length === 0) {
      shown.push(row);
      for (const column of listFacets) count(column, row);
    } else if (failed.length === 1) {
      const column = listFacets.find(({ key }) => key === failed[0][0]);
      if (column) count(column, row);
    }
  }
  sortRows();
}

// --------------------------------------------------------------------------------------------------------- sorting

const ranks = {};

/** Return the value to sort by of each row. Texts are compared once, as a reader sorts them: 2 before 10. */
function getSortKeys(key) {
  if (columnOf[key].kind !== 'text') return data.values[key];
  const { texts, codes } = data.values[key];
  if (!ranks[key]) {
    const collator = new Intl.Collator('en', { numeric: true });
    const order = texts.map((text, place) => place).sort((a, b) => collator.compare(texts[a], texts[b]));
    ranks[key] = new Map(order.map((place, rank) => [place, rank]));
  }
  return codes.map((code) => ranks[key].get(code) ?? null);
}

function sortRows() {
  if (!state.sort) {
    if (state.descending) shown.reverse();
    return;
  }
  const keys = getSortKeys(state.sort);
  const sign = state.descending ? -1 : 1;
  // Rows without a value are last in both directions; equal ones keep the order of the run.
  shown.sort((a, b) => (keys[a] === null) - (keys[b] === null) || sign * (keys[a] - keys[b]) || a - b);
}

// --------------------------------------------------------------------------------------------------------- address

function buildHash(openRow = null) {
  const asked = new URLSearchParams();
  if (openRow !== null) asked.set('open', data.ids[openRow]);
  if (state.view !== 'explanations') asked.set('view', state.view);
  if (state.query) asked.set('q', state.query);
  if (state.sort || state.descending) asked.set('sort', `${state.descending ? '-' : ''}${state.sort}`);
  for (const [key, chosen] of Object.entries(state.choices)) for (const option of chosen) asked.append(key, option);
  for (const [key, range] of Object.entries(state.ranges)) {
    if (range[0] > 0 || range[1] < 1) asked.set(key, range.join('-'));
  }
  return asked.toString() ? `#${asked}` : '#';
}

/** Take search, filters and order from the address; return the row to open, or null. */
function readHash() {
  const asked = new URLSearchParams(location.hash.slice(1));
  // A page without an explanation begins with the reasons.
  const asksFailures = asked.get('view') === 'failures' || data.groups.length === 0;
  state.view = asksFailures && data.failures.length ? 'failures' : 'explanations';
  state.query = asked.get('q') ?? '';
  const sort = asked.get('sort') ?? '';
  state.descending = sort.startsWith('-');
  state.sort = sortColumns.find(({ key }) => key === sort.replace(/^-/, ''))?.key ?? '';
  for (const key of Object.keys(state.choices)) state.choices[key] = new Set(asked.getAll(key));
  for (const key of Object.keys(state.ranges)) {
    const [least, most] = (asked.get(key) ?? '').split('-').map(Number);
    state.ranges[key] = least >= 0 && most <= 1 && least <= most ? [least, most] : [0, 1];
  }
  return rowOfId.get(asked.get('open')) ?? null;
}

function clearFilters() {
  state.query = '';
  for (const key of Object.keys(state.choices)) state.choices[key] = new Set();
  for (const key of Object.keys(state.ranges)) state.ranges[key] = [0, 1];
}

const isFiltered = () => shown.length < rowCount;
