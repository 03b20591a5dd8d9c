// @ts-check
/** A game of tic-tac-toe, as the server's `Game` describes it, and facts that follow from its state. */

/** @typedef {{id: string, name: string, wins: number}} Player */
/**
 * @typedef {{
 *   players: Player[], moves: number[], status: "waiting" | "playing" | "finished", winner: string | null
 * }} Game
 */

const LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
const MOST_LETTERS = 16;

/** Return the mark on a cell; the first player has X. @param {Game} game @param {number} cell */
export function markOn({ moves }, cell) {
  const move = moves.indexOf(cell);
  return move < 0 ? "" : move % 2 ? "O" : "X";
}

/** Return the cells of a finished line. @param {Game} game @returns {number[]} */
export function winningLine(game) {
  const marks = Array.from({ length: 9 }, (_, cell) => markOn(game, cell));
  return LINES.find(([a, b, c]) => marks[a] && marks[a] === marks[b] && marks[a] === marks[c]) ?? [];
}

/** Return the player whose turn it is. @param {Game} game @returns {Player | undefined} */
export function nextPlayer({ players, moves, status }) {
  return status === "playing" ? players[moves.length % 2] : undefined;
}

/** Describe the situation for a player. @param {Game} game @param {string} you */
export function situation(game, you) {
  const seated = game.players.some((player) => player.id === you);
  if (game.status === "waiting") return seated ? "Waiting for someone to join" : "Take a seat";
  const next = nextPlayer(game);
  if (next) return next.id === you ? "Your turn" : `${short(next.name)}’s turn`;
  if (game.winner === null) return "A draw";
  if (game.winner === you) return "You won";
  const winner = game.players.find((player) => player.id === game.winner);
  return `${winner ? short(winner.name) : "Someone who left"} won`;
}

/** Return a name, shortened to fit into a sentence. @param {string} name */
export function short(name) {
  const letters = [...name];
  return letters.length > MOST_LETTERS ? `${letters.slice(0, MOST_LETTERS - 1).join("")}…` : name;
}

/**
 * States that no player may push.
 * @type {Record<string, (game: Game, you: string) => Game>}
 */
export const cheats = {
  twice: (game) => ({ ...game, moves: [...game.moves, ...freeCells(game).slice(0, 2)] }),
  taken: (game) => ({ ...game, moves: [...game.moves, game.moves[0]] }),
  undo: (game) => ({ ...game, moves: game.moves.slice(0, -1) }),
  win: (game, you) => ({ ...game, status: "finished", winner: you }),
};

/** @param {Game} game */
function freeCells({ moves }) {
  return [4, 0, 2, 6, 8, 1, 3, 5, 7].filter((cell) => !moves.includes(cell));
}
