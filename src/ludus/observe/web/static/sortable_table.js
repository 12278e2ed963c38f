// A table whose columns can be sorted. It keeps the order that was asked for when its rows change.

import { make } from "./dom.js";

// columns: [{title, cell(row) -> text or element, key(row) -> number or text (sortable), number, wide, hint,
//            when(rows) -> whether the column is shown, apart(row) -> number: sorted by this column, rows of
//            different numbers are ranked apart, lower numbers first}]
export class SortableTable {
  constructor({ caption, columns, sortBy = null, descending = true }) {
    this.sortBy = sortBy;
    this.descending = descending;
    this.rows = [];
    this.body = make("tbody");
    this.row = make("tr");
    this.setColumns(columns);
    this.element = make(
      "div",
      { class: "table" },
      make(
        "table",
        {},
        make("caption", { class: "hidden" }, caption),
        make("thead", {}, this.row),
        this.body,
      ),
    );
  }

  setColumns(columns) {
    this.columns = columns;
    this.heads = columns.map((column) =>
      make("th", { scope: "col", class: classOf(column), title: column.hint }, this.head(column)),
    );
    this.row.replaceChildren(...this.heads);
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  head(column) {
    if (!column.key) return column.title;
    return make(
      "button",
      {
        type: "button",
        onclick: () => {
          this.descending = this.sortBy === column.title ? !this.descending : Boolean(column.number);
          this.sortBy = column.title;
          this.draw();
        },
      },
      column.title,
    );
  }

  draw() {
    const by = this.columns.find((column) => column.title === this.sortBy);
    const apart = by?.apart ?? (() => 0);
    const rows = by
      ? [...this.rows].sort((a, b) => apart(a) - apart(b) || compared(by.key(a), by.key(b), this.descending))
      : this.rows;
    const isShown = this.columns.map((column) => !column.when || column.when(rows));
    this.columns.forEach((column, at) => {
      this.heads[at].hidden = !isShown[at];
      if (column === by) this.heads[at].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else this.heads[at].removeAttribute("aria-sort");
    });
    this.body.replaceChildren(
      ...rows.map((row, place) =>
        make(
          "tr",
          { class: place && apart(row) !== apart(rows[place - 1]) ? "apart" : null },
          ...this.columns.map((column, at) =>
            make(
              at ? "td" : "th",
              { class: classOf(column), scope: at ? null : "row", hidden: !isShown[at] },
              column.cell(row),
            ),
          ),
        ),
      ),
    );
  }
}

function classOf(column) {
  return [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
}

// What is not known comes last, whichever way.
function compared(a, b, descending) {
  const known = (value) => value !== null && value !== undefined;
  if (!known(a) || !known(b)) return Number(known(b)) - Number(known(a));
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return descending ? -order : order;
}
