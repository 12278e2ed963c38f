// The rules of games for two seats: what is legal, what a seat sees, and what a page draws. They are those of
// `ludus.games.builtin`, and a test plays both side by side.

class Board {
  hides = false; // seats see the same

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
    const cells = this.falls ? this.bottomUp() : [...this.stones.keys()];
    return [seat, 1 - seat].flatMap((owner) => cells.map((cell) => Number(this.stones[cell] === owner)));
  }

  // All cells, the bottom row first.
  bottomUp() {
    return [...this.stones.keys()].sort((one, other) =>
      Math.floor(other / this.columns) - Math.floor(one / this.columns) || one - other);
  }

  optionName(option) {
    return option + 1;
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
  constructor({ threats, all_threats }) {
    super(6, 7, 4, true);
    [this.threats, this.allThreats] = [threats, all_threats];
  }

  observation(seat) {
    const seen = { board: this.flags(seat) };
    const seats = [seat, 1 - seat];
    if (this.threats) seen.threats = seats.flatMap((one) => this.winningColumns(one));
    if (this.allThreats) seen.all_threats = seats.flatMap((one) => this.winningCells(one));
    return seen;
  }

  // The columns in which a stone of the seat would complete a line now.
  winningColumns(seat) {
    return Array.from({ length: this.columns }, (_, column) => Number(this.completes(seat, this.cellOf(column))));
  }

  // The empty cells where a stone of the seat would complete a line, whether or not one can fall there now.
  winningCells(seat) {
    return this.bottomUp().map((cell) => Number(this.stones[cell] < 0 && this.completes(seat, cell)));
  }

  completes(seat, cell) {
    if (cell === null) return false;
    this.stones[cell] = seat;
    const wins = this.lines(seat).includes(cell);
    this.stones[cell] = -1;
    return wins;
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

const [PASS, BET] = [0, 1];

// Kuhn poker: one card of three for each, one bet.
export class Kuhn {
  hides = true;

  constructor() {
    this.reset();
  }

  reset() {
    const cards = [0, 1, 2];
    const first = cards.splice(Math.floor(3 * Math.random()), 1)[0];
    this.deal([first, cards[Math.floor(2 * Math.random())]]);
  }

  deal(cards) {
    this.cards = cards;
    this.moves = [];
  }

  get seat() {
    return this.moves.length % 2;
  }

  // Every seat may bet once; after the first bet the other answers.
  get over() {
    const bet = this.moves.indexOf(BET);
    return this.moves.length === (bet < 0 ? 2 : bet + 2);
  }

  get bettors() {
    return this.moves.flatMap((move, turn) => (move === BET ? [turn % 2] : []));
  }

  get winner() {
    if (!this.over) return null;
    const left = this.bettors.length ? this.bettors : [0, 1];
    return left.reduce((best, seat) => (this.cards[seat] > this.cards[best] ? seat : best));
  }

  legal() {
    return [!this.over, !this.over];
  }

  play(option) {
    if (!this.legal()[option]) throw new Error(`move ${option} is not legal`);
    this.moves.push(option);
  }

  observation(seat) {
    const information = new Array(11).fill(0);
    information[seat] = 1;
    information[2 + this.cards[seat]] = 1;
    this.moves.forEach((move, turn) => (information[5 + 2 * turn + move] = 1));
    return { information };
  }

  optionName(option, before = this.moves) {
    return (before.includes(BET) ? ["fold", "call"] : ["check", "bet"])[option];
  }

  // What one seat may know; after the end everything is shown.
  view(seat) {
    return {
      kind: "cards",
      hands: this.cards.map((card, owner) => ({
        card: owner === seat || this.over ? "JQK"[card] : null,
        stake: this.bettors.includes(owner) ? 2 : 1,
      })),
      public: null,
      moves: this.moves.map((move, turn) =>
        ({ seat: turn % 2, round: 0, name: this.optionName(move, this.moves.slice(0, turn)) })),
    };
  }
}

const [FOLD, CALL, RAISE] = [0, 1, 2];
const MOST_RAISES = 2; // a round
const MOST_MOVES = 4;

// Leduc poker: one card of six for each, bets, a card for both, and bets again.
export class Leduc {
  hides = true;

  constructor() {
    this.reset();
  }

  reset() {
    const cards = [0, 1, 2, 3, 4, 5];
    this.deal(Array.from({ length: 3 }, () => cards.splice(Math.floor(cards.length * Math.random()), 1)[0]));
  }

  // The cards of both seats, and the one that is turned up for the second round.
  deal(cards) {
    this.cards = cards;
    this.rounds = [[]];
  }

  get moves() {
    return this.rounds.at(-1);
  }

  get seat() {
    return this.moves.length % 2;
  }

  get isClosed() {
    return this.moves.length > 1 && this.moves.at(-1) === CALL;
  }

  get over() {
    return this.moves.at(-1) === FOLD || (this.rounds.length === 2 && this.isClosed);
  }

  get stakes() {
    const stakes = [1, 1];
    this.rounds.forEach((moves, round) => moves.forEach((move, turn) => {
      if (move !== FOLD) stakes[turn % 2] = Math.max(...stakes) + (move === RAISE ? [2, 4][round] : 0);
    }));
    return stakes;
  }

  // A pair with the card on the table wins, else the higher card. Null while it goes on, and after a draw.
  get winner() {
    if (!this.over) return null;
    if (this.moves.at(-1) === FOLD) return this.seat;
    const [first, second, table] = this.cards.map((card) => Math.floor(card / 2));
    if (first === second) return null;
    return first === table || (second !== table && first > second) ? 0 : 1;
  }

  legal() {
    const raises = this.moves.filter((move) => move === RAISE).length;
    return [this.moves.at(-1) === RAISE, true, raises < MOST_RAISES].map((may) => may && !this.over);
  }

  play(option) {
    if (!this.legal()[option]) throw new Error(`move ${option} is not legal`);
    this.moves.push(option);
    if (this.isClosed && this.rounds.length === 1) this.rounds.push([]);
  }

  observation(seat) {
    const information = new Array(30).fill(0);
    information[seat] = 1;
    information[2 + this.cards[seat]] = 1;
    if (this.rounds.length === 2) information[8 + this.cards[2]] = 1;
    this.rounds.forEach((moves, round) => moves.forEach((move, turn) => {
      if (move !== FOLD) information[14 + 2 * (round * MOST_MOVES + turn) + move - CALL] = 1;
    }));
    return { information };
  }

  optionName(option, before = this.moves) {
    return ["fold", before.at(-1) === RAISE ? "call" : "check", "raise"][option];
  }

  // What one seat may know; after the end everything is shown.
  view(seat) {
    const name = (card) => "JQK"[Math.floor(card / 2)] + "♠♥"[card % 2];
    return {
      kind: "cards",
      hands: this.stakes.map((stake, owner) => ({
        card: owner === seat || this.over ? name(this.cards[owner]) : null,
        stake,
      })),
      public: this.rounds.length === 2 ? name(this.cards[2]) : "",
      moves: this.rounds.flatMap((moves, round) => moves.map((move, turn) =>
        ({ seat: turn % 2, round, name: this.optionName(move, moves.slice(0, turn)) }))),
    };
  }
}

export const GAMES = { connect_four: ConnectFour, tic_tac_toe: TicTacToe, kuhn: Kuhn, leduc: Leduc };
