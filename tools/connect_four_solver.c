/* Exact scores of connect-four moves: negamax on bitboards with alpha-beta, a transposition table and null windows.

The board is that of src/ludus/games/builtin/connect_four.py: column c, row r is bit 7 * c + r. A score is 0 for a
draw; a win counts 22 minus the stones that the winner has on the board when it wins, so a quick win scores more; a
loss is minus the score of the winner. `connect_four_yardstick.py` compiles this file and calls `column_scores`. */

#include <stdint.h>

typedef uint64_t Bits;

enum { COLUMNS = 7, ROWS = 6, CELLS = 42, HEIGHT = ROWS + 1, FULL_COLUMN = -128 };
#define BOTTOM 0x40810204081ull
#define BOARD (BOTTOM * 63)
#define ENTRIES 8388593 /* a prime, so that all bits of a key spread over the table */

/* Bits 8 and up: the position. Bit 7: set for a lower bound. Bits 0 to 6: score + 64. */
static uint64_t table[ENTRIES];
static const int NEAR_CENTRE[COLUMNS] = {3, 2, 4, 1, 5, 0, 6};

static Bits column_cells(int column) { return 63ull << (HEIGHT * column); }

static Bits playable(Bits stones) { return (stones + BOTTOM) & BOARD; }

/* The empty cells that would complete four of `own`. */
static Bits winning_cells(Bits own, Bits stones) {
    Bits found = (own << 1) & (own << 2) & (own << 3);
    for (int step = HEIGHT - 1; step <= HEIGHT + 1; step++) {
        Bits right = (own << step) & (own << 2 * step), left = (own >> step) & (own >> 2 * step);
        found |= right & ((own << 3 * step) | (own >> step));
        found |= left & ((own >> 3 * step) | (own << step));
    }
    return found & (stones ^ BOARD);
}

/* The moves after which the other seat cannot win at once. */
static Bits safe_moves(Bits own, Bits stones) {
    Bits moves = playable(stones), threats = winning_cells(own ^ stones, stones), forced = moves & threats;
    if (forced) {
        if (forced & (forced - 1)) return 0;
        moves = forced;
    }
    return moves & ~(threats >> 1);
}

/* The score of the seat to move, which cannot win at once: exact between alpha and beta, else a bound. */
static int negamax(Bits own, Bits stones, int alpha, int beta) {
    int played = __builtin_popcountll(stones);
    Bits moves = safe_moves(own, stones);
    if (!moves) return -(CELLS - played) / 2;
    if (played >= CELLS - 2) return 0;
    int lowest = -(CELLS - 2 - played) / 2, highest = (CELLS - 1 - played) / 2;
    if (lowest >= beta) return lowest;
    if (highest <= alpha) return highest;
    if (alpha < lowest) alpha = lowest;
    if (beta > highest) beta = highest;
    uint64_t key = own + stones, *entry = &table[key % ENTRIES];
    if (*entry >> 8 == key) {
        int known = (int)(*entry & 127) - 64;
        if (*entry & 128) {
            if (known >= beta) return known;
            if (known > alpha) alpha = known;
        } else {
            if (known <= alpha) return known;
            if (known < beta) beta = known;
        }
        if (alpha >= beta) return alpha;
    }
    Bits order[COLUMNS];
    int promise[COLUMNS], count = 0;
    for (int place = 0; place < COLUMNS; place++) { /* most threats first, then nearest the centre */
        Bits move = moves & column_cells(NEAR_CENTRE[place]);
        if (!move) continue;
        int threats = __builtin_popcountll(winning_cells(own | move, stones | move)), at = count++;
        for (; at && promise[at - 1] < threats; at--) order[at] = order[at - 1], promise[at] = promise[at - 1];
        order[at] = move, promise[at] = threats;
    }
    for (int number = 0; number < count; number++) {
        Bits move = order[number];
        int score = -negamax(own ^ stones, stones | move, -beta, -alpha);
        if (score >= beta) {
            *entry = key << 8 | 128 | (uint64_t)(score + 64);
            return score;
        }
        if (score > alpha) alpha = score;
    }
    *entry = key << 8 | (uint64_t)(alpha + 64);
    return alpha;
}

/* The exact score of the seat to move. Null windows near 0 first: who wins is cheaper to know than when. */
int best_score(Bits own, Bits other) {
    Bits stones = own | other;
    int played = __builtin_popcountll(stones);
    if (winning_cells(own, stones) & playable(stones)) return (CELLS + 1 - played) / 2;
    int low = -(CELLS - played) / 2, high = (CELLS + 1 - played) / 2;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (middle <= 0 && low / 2 < middle) middle = low / 2;
        else if (middle >= 0 && high / 2 > middle) middle = high / 2;
        int score = negamax(own, stones, middle, middle + 1);
        if (score <= middle) high = score;
        else low = score;
    }
    return low;
}

/* The score of every move of the seat to move; FULL_COLUMN where there is none. */
void column_scores(Bits own, Bits other, int8_t *scores) {
    Bits stones = own | other;
    int played = __builtin_popcountll(stones);
    for (int column = 0; column < COLUMNS; column++) {
        Bits move = playable(stones) & column_cells(column);
        if (!move) scores[column] = FULL_COLUMN;
        else if (winning_cells(own, stones) & move) scores[column] = (int8_t)((CELLS + 1 - played) / 2);
        else scores[column] = played == CELLS - 1 ? 0 : (int8_t)-best_score(other, own | move);
    }
}
