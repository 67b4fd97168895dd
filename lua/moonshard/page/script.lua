-- The script of a sweep's page: sorts and groups the table and the charts when the reader clicks a column, or uses the
-- controls above the charts.
--
-- The script is inline, so the page needs no network. Without scripts the page shows the same numbers in the sweep's
-- own order; the script therefore creates the controls itself. It reads the points from the table: a cell with a number
-- has it in data-v, and each row of a chart has its point's number in data-point.

local layout = require("moonshard.page.bars").LAYOUT

return ("const ROW = %d, GROUP = %d, AXIS = %d;\n"):format(layout.row, layout.group, layout.axis) .. [==[
const table = document.querySelector("table"), points = [...table.tBodies[0].rows];
const heads = [...table.tHead.rows[0].cells], names = heads.map(head => head.textContent);
const settings = names.slice(0, +table.dataset.settings);
const charts = [...document.querySelectorAll("svg[data-top]")].map(svg => ({ svg,
  rows: [...svg.querySelectorAll(".row")].map(row => ({ row, label: row.querySelector(".label"),
    text: row.querySelector(".label").textContent, point: points[row.dataset.point - 1] })) }));
// The settings in which the rows of a chart differ.
charts.forEach(chart => chart.varying = settings.map((name, i) => i).filter(i =>
  new Set(chart.rows.map(({ point }) => point.cells[i].textContent)).size > 1));
const state = { column: -1, down: false, group: settings.length > 1 ? 0 : -1 };

function compare(a, b) {
  const [x, y] = [a, b].map(point => point.cells[state.column]);
  const missing = cell => cell.textContent === "" || (cell.className === "n" && cell.dataset.v === undefined);
  if (missing(x) || missing(y)) return missing(x) - missing(y);
  const numbers = x.dataset.v !== undefined && y.dataset.v !== undefined;
  const order = numbers ? x.dataset.v - y.dataset.v
    : x.textContent.localeCompare(y.textContent, "en", { numeric: true });
  return state.down ? -order : order;
}

function label(point, text, varying, mark) {
  const parts = varying.map(i => [i, settings[i], point.cells[i].textContent])
    .filter(([i, , value]) => i !== state.group && value !== "").map(([, name, value]) => name + "=" + value);
  return parts.length ? parts.join("  ") + (point.className === "skipped" ? "  (skipped)" : "") + mark : text;
}

function draw({ svg, rows, varying }, order) {
  svg.querySelectorAll(".group").forEach(title => title.remove());
  const groups = new Map();
  for (const item of rows.slice().sort((a, b) => order.indexOf(a.point) - order.indexOf(b.point))) {
    const value = state.group < 0 ? "" : item.point.cells[state.group].textContent;
    const title = state.group < 0 ? "" : value === "" ? "others" : settings[state.group] + " " + value;
    groups.set(title, (groups.get(title) || []).concat(item));
  }
  let y = +svg.dataset.top;
  for (const [title, items] of groups) {
    if (title) {
      const text = document.createElementNS(svg.namespaceURI, "text");
      text.setAttribute("class", "group");
      text.setAttribute("x", 0);
      text.setAttribute("y", y + GROUP - 10);
      text.textContent = title;
      svg.append(text);
      y += GROUP;
    }
    for (const item of items) {
      item.row.setAttribute("transform", "translate(0 " + y + ")");
      item.label.textContent = label(item.point, item.text, varying, item.row.dataset.mark);
      svg.append(item.row);
      y += ROW;
    }
  }
  svg.querySelectorAll(".grid, .limit").forEach(line => line.setAttribute("y2", y));
  svg.querySelectorAll(".tick").forEach(tick => tick.setAttribute("y", y + 16));
  svg.querySelectorAll(".axis-title").forEach(title => title.setAttribute("y", y + 34));
  svg.setAttribute("height", y + AXIS);
  const file = svg.cloneNode(true), style = document.createElementNS(svg.namespaceURI, "style");
  style.textContent = document.querySelector("style").textContent;
  file.prepend(style);
  file.setAttribute("width", 860);
  svg.closest("figure").querySelector(".get").href = "data:image/svg+xml;charset=utf-8,"
    + encodeURIComponent(new XMLSerializer().serializeToString(file));
}

const selects = {};
function show() {
  const order = state.column < 0 ? points : points.slice().sort(compare);
  table.tBodies[0].append(...order);
  charts.forEach(chart => draw(chart, order));
  heads.forEach((head, i) => {
    if (i === state.column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  selects.order.value = state.column < 0 ? "-1" : state.column + (state.down ? " down" : "");
  selects.group.value = String(state.group);
}

function control(name, text, options, take) {
  const holder = document.createElement("label"), select = document.createElement("select");
  for (const [value, shown] of options) select.add(new Option(shown, value));
  select.addEventListener("change", () => { take(select.value); show(); });
  holder.append(text + " ", select);
  document.querySelector(".controls").append(holder);
  selects[name] = select;
}

control("order", "order", [["-1", "as given"]].concat(names.flatMap((name, i) =>
  [[String(i), name + ", lowest first"], [i + " down", name + ", highest first"]])), value => {
  state.column = parseInt(value, 10);
  state.down = value.endsWith("down");
});
control("group", "group by", [["-1", "nothing"]].concat(settings.map((name, i) => [String(i), name])),
  value => { state.group = +value; });
heads.forEach((head, i) => {
  const button = document.createElement("button");
  button.textContent = names[i];
  button.addEventListener("click", () => {
    state.down = state.column === i && !state.down;
    state.column = i;
    show();
  });
  head.replaceChildren(button);
});
show();
]==]
