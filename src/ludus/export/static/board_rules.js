// The rules of board games for two seats: what is legal, what a seat sees, and what a page draws. They are those of
// `ludus.games.builtin`, and a test plays both side by side.

class Board {
  constructor(rows, columns, inLine, falls) {
    [this.rows, this.columns, this.inLine, this.falls] = [rows, columns, inLine, falls];
    this.reset();
  }

  reset() {
    this.stones = new Array(this.rows * this.columns).fill(-1); // top row first; the seat that owns it, or -1
    this.moves = [];
    this.winner = null;
  }

  get seat() {
    return this.moves.length % 2;
  }

  get over() {
    return this.winner !== null || this.moves.length === this.stones.length;
  }

  get options() {
    return this.falls ? this.columns : this.stones.length;
  }

  legal() {
    return Array.from({ length: this.options }, (_, option) => !this.over && this.cellOf(option) !== null);
  }

  // The cell that a stone would take; null: none is free.
  cellOf(option) {
    if (!this.falls) return this.stones[option] < 0 ? option : null;
    for (let row = this.rows - 1; row >= 0; row--) {
      if (this.stones[row * this.columns + option] < 0) return row * this.columns + option;
    }
    return null;
  }

  play(option) {
    if (!this.legal()[option]) throw new Error(`move ${option} is not legal`);
    const seat = this.seat;
    this.stones[this.cellOf(option)] = seat;
    this.moves.push(option);
    if (this.lines(seat).length) this.winner = seat;
  }

  // The cells of every complete line of a seat.
  lines(seat) {
    const found = new Set();
    for (let row = 0; row < this.rows; row++) {
      for (let column = 0; column < this.columns; column++) {
        for (const [down, right] of [[0, 1], [1, 0], [1, 1], [1, -1]]) {
          const last = [row + down * (this.inLine - 1), column + right * (this.inLine - 1)];
          if (last[0] >= this.rows || last[1] < 0 || last[1] >= this.columns) continue;
          const cells = Array.from({ length: this.inLine }, (_, step) =>
            (row + down * step) * this.columns + column + right * step);
          if (cells.every((cell) => this.stones[cell] === seat)) cells.forEach((cell) => found.add(cell));
        }
      }
    }
    return [...found].sort((one, other) => one - other);
  }

  // Flags of the seat's own stones, then of the other's. Where stones fall, the bottom row comes first.
  flags(seat) {
    const rows = Array.from({ length: this.rows }, (_, row) => (this.falls ? this.rows - 1 - row : row));
    return [seat, 1 - seat].flatMap((owner) => rows.flatMap((row) =>
      Array.from({ length: this.columns }, (_, column) => Number(this.stones[row * this.columns + column] === owner))));
  }

  view() {
    const latest = this.moves.at(-1);
    let cell = latest ?? null;
    if (this.falls && latest !== undefined) {
      cell = latest;
      while (this.stones[cell] < 0) cell += this.columns;
    }
    return {
      kind: "board",
      rows: this.rows,
      columns: this.columns,
      falls: this.falls,
      stones: [...this.stones],
      latest: cell,
      line: this.winner === null ? [] : this.lines(this.winner),
    };
  }
}

export class ConnectFour extends Board {
  constructor({ threats }) {
    super(6, 7, 4, true);
    this.threats = threats;
  }

  observation(seat) {
    const seen = { board: this.flags(seat) };
    if (this.threats) seen.threats = [...this.winningColumns(seat), ...this.winningColumns(1 - seat)];
    return seen;
  }

  // The columns in which a stone of the seat would complete a line now.
  winningColumns(seat) {
    return Array.from({ length: this.columns }, (_, column) => {
      const cell = this.cellOf(column);
      if (cell === null) return 0;
      this.stones[cell] = seat;
      const wins = this.lines(seat).includes(cell);
      this.stones[cell] = -1;
      return Number(wins);
    });
  }
}

export class TicTacToe extends Board {
  constructor() {
    super(3, 3, 3, false);
  }

  observation(seat) {
    return { board: this.flags(seat) };
  }
}

export const GAMES = { connect_four: ConnectFour, tic_tac_toe: TicTacToe };
