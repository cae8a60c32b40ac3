// The rows. Texts are stored once; a row holds the place of its text in the list, or -1.

const data = JSON.parse($('data').textContent);
const rowCount = data.ids.length;
const columns = data.columns;
const columnOf = Object.fromEntries(columns.map((column) => [column.key, column]));

/** Return the value of a row in a column; null if it has none. */
function read(key, row) {
  const values = data.values[key];
  if (columnOf[key].kind !== 'text') return values[row];
  const code = values.codes[row];
  return code < 0 ? null : values.texts[code];
}

function formatValue(column, value) {
  if (column.kind === 'percent') return `${(value * 100).toFixed(1)}%`;
  return column.kind === 'number' ? formatScore(value) : String(value);
}

const getName = (row) => read('image', row).split(/[\\/]/).pop();
const getPicture = (row) => data.pictures[row][0]?.[1] ?? null;
const getThumbnail = (row) => (data.thumbnails[row] === 0 ? getPicture(row) : data.thumbnails[row]);

function getPhoto(row) {
  const code = data.photos.codes[row];
  return code < 0 ? null : data.photos.texts[code];
}

/** Return the rows of each photo, in the order of the run. */
const rowsOfGroup = [];
data.groups.forEach((group, row) => (rowsOfGroup[group] ??= []).push(row));

const rowOfId = new Map(data.ids.map((id, row) => [id, row]));
const kindsOf = (row) => [...new Set(data.warnings[row].map((place) => data.warningTexts[place][1]))];
// A warning is a reason not to trust a map, a note a fact to know.
const SEVERITIES = ['warning', 'note'];
const countSeverity = (row, severity) => data.warnings[row].filter(
  (place) => data.warningKinds[data.warningTexts[place][1]].severity === severity).length;
const hasSeveral = (key) => new Set(data.values[key].codes).size > 1;
const hasMethods = hasSeveral('method');

/** Return what a screen reader says of a row. */
function describeRow(row) {
  const probability = read('probability', row);
  const verdict = read('verdict', row);
  const truth = read('truth', row);
  return [
    read('label', row) ?? 'no class',
    probability === null ? null : formatPercent(probability),
    verdict === 'Wrong' && truth ? `wrong, the photo shows ${truth}` : verdict?.toLowerCase(),
    getName(row),
    hasMethods ? read('method', row) : null,
    ...SEVERITIES.filter((severity) => countSeverity(row, severity))
      .map((severity) => countOf(countSeverity(row, severity), severity)),
  ].filter(Boolean).join(', ');
}
