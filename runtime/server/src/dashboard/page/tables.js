// Tables: columns, rows with keys, and cells that change only if their text does.

const known = new WeakMap();

/** Numbers as text; a dash for values that the viewer may not see or that were not measured. */
export const text = {
  count: (value) => (value == null ? "–" : value.toLocaleString("en")),
  rate: (value) => (value == null ? "–" : value.toFixed(value < 100 ? 1 : 0)),
  percent: (fraction) => (fraction == null ? "–" : `${(fraction * 100).toFixed(1)} %`),
  seconds: (value) => (value == null ? "–" : `${value.toFixed(3)} s`),
  time(us) {
    if (us == null) return "–";
    if (us < 1000) return `${us.toFixed(0)} µs`;
    return us < 1e6 ? `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms` : `${(us / 1e6).toFixed(2)} s`;
  },
  bytes(value) {
    if (value == null) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    return `${value.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
  },
  clock(at_s) {
    const time = new Date(at_s * 1000);
    return `${time.toLocaleTimeString("en-GB")}.${String(time.getMilliseconds()).padStart(3, "0")}`;
  },
  list: (values) => values.join(", "),
  /** Indices as ranges, as in `0–3, 6`. */
  ranges(values) {
    const parts = [];
    for (const value of values) {
      const last = parts[parts.length - 1];
      if (last && last[1] + 1 === value) last[1] = value;
      else parts.push([value, value]);
    }
    return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  },
};

/**
 * Shows rows in a table. A column is `[title, cell]` or `[title, cell, "number"]`. `cell` returns the
 * text or the element for a row. The first column is the header of the row. `key` identifies a row.
 */
export function show(id, caption, columns, rows, key, none) {
  const table = document.getElementById(id);
  let state = known.get(table);
  if (!state) {
    state = begin(table, columns);
    known.set(table, state);
  }
  put(table.caption, caption);
  const seen = new Set();
  rows.forEach((row, at) => {
    const name = key(row);
    seen.add(name);
    let line = state.rows.get(name);
    if (!line) {
      line = newRow(columns);
      state.rows.set(name, line);
    }
    if (state.body.children[at] !== line) state.body.insertBefore(line, state.body.children[at] ?? null);
    columns.forEach(([, cell], column) => put(line.children[column], cell(row)));
  });
  for (const [name, line] of state.rows) {
    if (!seen.has(name)) {
      line.remove();
      state.rows.delete(name);
    }
  }
  state.empty.hidden = rows.length > 0;
  put(state.empty.firstChild, none);
}

function begin(table, columns) {
  table.createCaption();
  const head = table.createTHead().insertRow();
  for (const [title, , kind] of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = title;
    if (kind) cell.className = kind;
    head.append(cell);
  }
  const body = table.createTBody();
  const foot = table.createTBody();
  const empty = foot.insertRow();
  const cell = empty.insertCell();
  cell.colSpan = columns.length;
  cell.className = "none";
  return { body, empty, rows: new Map() };
}

function newRow(columns) {
  const line = document.createElement("tr");
  columns.forEach(([, , kind], at) => {
    const cell = document.createElement(at === 0 ? "th" : "td");
    if (at === 0) cell.scope = "row";
    if (kind) cell.className = kind;
    line.append(cell);
  });
  return line;
}

function put(cell, value) {
  if (value instanceof Node) {
    if (cell.firstChild !== value) cell.replaceChildren(value);
  } else if (cell.textContent !== String(value)) {
    cell.textContent = value;
  }
}

/** The full name of a function. */
export function fullName(row) {
  const name = row.function ?? "(no longer loaded)";
  return row.tenant === "local" ? name : `${row.tenant}:${name}`;
}
