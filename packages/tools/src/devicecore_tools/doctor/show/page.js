"use strict";
// The details of a device are made of the table's rows, so nothing is in the page twice.
const panel = document.getElementById("detail");
const content = document.getElementById("detail-body");
const headings = [...document.querySelectorAll("#devices thead th")].map((heading) => heading.textContent);
const cells = [...document.querySelectorAll(".cell")];
let shown = null;

function rowsOf(cell) {
  return cell.dataset.rows.split(" ").map((id) => document.getElementById(id)).filter((row) => row);
}

function mark(isOn) {
  if (!shown) return;
  for (const one of [shown, ...rowsOf(shown)]) one.classList.toggle("on", isOn);
}

function hide() {
  mark(false);
  shown = null;
  panel.hidden = true;
}

// The values of a row; of a second owner's row, those that are not the same as before.
function listOf(row, number, rows) {
  const list = document.createElement("dl");
  [...row.cells].forEach((value, place) => {
    const isKnown = number > 0 && rows[number - 1].cells[place].textContent === value.textContent;
    if (isKnown || !value.textContent) return;
    const term = document.createElement("dt");
    const said = document.createElement("dd");
    term.textContent = headings[place];
    said.append(...[...value.childNodes].map((node) => node.cloneNode(true)));
    list.append(term, said);
  });
  return list;
}

function show(cell) {
  mark(false);
  shown = cell;
  mark(true);
  content.replaceChildren(...rowsOf(cell).map(listOf));
  const place = cell.getBoundingClientRect();
  panel.classList.toggle("left", place.left + place.right > window.innerWidth); // so that it never covers the cell
  panel.hidden = false;
}

// The nearest cell above (-1) or below (1) that overlaps this one from left to right.
function beyond(cell, direction) {
  const here = cell.getBoundingClientRect();
  for (let place = cells.indexOf(cell) + direction; cells[place]; place += direction) {
    const there = cells[place].getBoundingClientRect();
    const isFurther = (there.top - here.top) * direction > 4;
    if (isFurther && there.left < here.right && there.right > here.left) return cells[place];
  }
  return null;
}

const keys = {
  ArrowRight: (cell) => cells[cells.indexOf(cell) + 1],
  ArrowLeft: (cell) => cells[cells.indexOf(cell) - 1],
  ArrowDown: (cell) => beyond(cell, 1),
  ArrowUp: (cell) => beyond(cell, -1),
  Home: () => cells[0],
  End: () => cells[cells.length - 1],
};

function cellOf(event) {
  return event.target instanceof Element ? event.target.closest(".cell") : null;
}

for (const kind of ["focusin", "mouseover"]) {
  document.addEventListener(kind, (event) => {
    const cell = cellOf(event);
    if (cell && cell !== shown) show(cell);
  });
}

document.addEventListener("keydown", (event) => {
  const cell = cellOf(event);
  if (event.key === "Escape") {
    hide();
  } else if (cell && keys[event.key]) {
    event.preventDefault();
    keys[event.key](cell)?.focus();
  }
});

document.getElementById("close").addEventListener("click", hide);
