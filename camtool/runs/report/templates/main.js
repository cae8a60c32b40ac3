// Start: connect the parts, and follow the address.

/** Show what the state asks for, after a change by the user. */
function showChange() {
  history.replaceState(history.state, '', buildHash(openRow));
  showState();
}

function showState() {
  refilter();
  updateSidebar();
  updateChips(showChange);
  const isFailures = state.view === 'failures';
  $('layout').classList.toggle('only-failures', isFailures);
  $('explanations-view').hidden = isFailures;
  $('failures-view').hidden = !isFailures;
  for (const tab of document.querySelectorAll('[data-view]')) {
    tab.setAttribute('aria-pressed', String(tab.dataset.view === state.view));
  }
  $('empty').hidden = shown.length > 0 || rowCount === 0;
  $('count').textContent = isFailures ? `${countOf(data.failures.length, 'photo')} could not be explained`
    : isFiltered() ? `${formatInteger(shown.length)} of ${countOf(rowCount, 'explanation')}` : countOf(rowCount, 'explanation');
  $('show-results').textContent = `Show ${countOf(shown.length, 'explanation')}`;
  resetGrid();
}

let isStarted = false;

/** Follow the address: when the page opens, and at "back" and "forward". */
function followAddress() {
  const before = buildHash();
  const row = readHash();
  // When only the large view opens or closes, the grid keeps its tiles, and so the focus.
  if (!isStarted || buildHash() !== before) showState();
  isStarted = true;
  if (row !== null) openViewer(row, { isNew: false });
  else if (viewer.open) viewer.close();
}

// -------------------------------------------------------------------------------------------------------- failures

function buildFailures() {
  const rows = data.failures.map(({ image, reason }) => make('tr', {}, make('td', { text: image }),
    make('td', { text: reason })));
  $('failures').append(...rows);
}

function showView(view) {
  state.view = view;
  showChange();
  scrollTo({ top: 0 });
}

// ---------------------------------------------------------------------------------------------------------- events

$('search').addEventListener('input', oncePerFrame(() => {
  state.query = $('search').value;
  state.view = 'explanations';
  showChange();
}));
$('sort').addEventListener('change', () => {
  state.sort = $('sort').value;
  // The doubtful ones are what one looks for, except of warnings: there it is those with many.
  state.descending = state.sort === 'warnings';
  showChange();
});
$('direction').addEventListener('click', () => {
  state.descending = !state.descending;
  showChange();
});
$('tile-size').addEventListener('input', () => {
  remember('tile-size', $('tile-size').value);
  resetGrid();
});
$('clear').addEventListener('click', () => {
  clearFilters();
  showChange();
});
$('skip').addEventListener('click', (event) => {
  event.preventDefault();
  if (shown.length) focusPlace(0);
});
function toggleFilters(isOpen) {
  $('sidebar').classList.toggle('open', isOpen);
  $('filter-button').setAttribute('aria-expanded', String(isOpen));
}
$('filter-button').addEventListener('click', () => toggleFilters(!$('sidebar').classList.contains('open')));
$('show-results').addEventListener('click', () => {
  toggleFilters(false);
  $('filter-button').focus();
});
for (const button of document.querySelectorAll('[data-view]')) {
  button.addEventListener('click', () => showView(button.dataset.view));
}
for (const button of document.querySelectorAll('[data-facet]')) {
  button.addEventListener('click', () => {
    const { facet, option } = button.dataset;
    if (!state.choices[facet]) return;
    clearFilters();
    state.view = 'explanations';
    state.choices[facet] = new Set([option]);
    showChange();
  });
}
document.addEventListener('keydown', (event) => {
  if (viewer.open) return;
  if (event.key === '/' && !event.target.closest('input, select')) {
    event.preventDefault();
    $('search').focus();
  } else if (event.key === 'Escape' && event.target === $('search') && state.query) {
    state.query = '';
    showChange();
  }
});
addEventListener('scroll', oncePerFrame(renderGrid), { passive: true });
addEventListener('resize', oncePerFrame(resetGrid));
addEventListener('popstate', followAddress);
addEventListener('hashchange', () => {
  // popstate came before it, unless the user wrote the address.
  if (location.hash !== buildHash(openRow)) followAddress();
});

$('tile-size').value = recall('tile-size') ?? 220;
buildSidebar(showChange);
buildFailures();
$('layout').classList.toggle('no-filters', facets.length === 0);
followAddress();
