// @ts-check
/** A game of cards, as the server's `Game` describes it, and facts that follow from the part that this page sees. */

/** @typedef {{id: string, name: string, cards: number, wins: number}} Player */
/** @typedef {{by: string, card: string | null, suit: string | null, has_passed: boolean}} Move */
/**
 * The part of a game that this page sees: `hands` has only the hands that its person may see, and `deck` is
 * missing unless the person may see all.
 * @typedef {{
 *   players: readonly Player[], status: "waiting" | "playing" | "finished", turn: string | null, winner: string | null,
 *   pile: readonly string[], suit: string | null, last: Move | null, deck_size: number,
 *   hands: Readonly<Record<string, readonly string[]>>, deck?: readonly string[],
 * }} Game
 */

export const SUITS = { "♣": "clubs", "♦": "diamonds", "♥": "hearts", "♠": "spades" };
export const SEATS = 4;
const RANKS = {
  7: "seven", 8: "eight", 9: "nine", 10: "ten", J: "jack", Q: "queen", K: "king", A: "ace",
};
const MOST_LETTERS = 16;

/** Return the rank of a card, such as "10". @param {string} card */
export function rankOf(card) {
  return card.slice(0, -1);
}

/** Return the suit of a card, such as "♥". @param {string} card */
export function suitOf(card) {
  return card.slice(-1);
}

/** Return the name of a suit. @param {string | null} suit */
export function suitName(suit) {
  return SUITS[/** @type {keyof typeof SUITS} */ (suit)] ?? "";
}

/** Return the name of a card, such as "nine of clubs". @param {string} card */
export function cardName(card) {
  return `${rankName(card)} of ${suitName(suitOf(card))}`;
}

/** @param {string} card */
function rankName(card) {
  return RANKS[/** @type {keyof typeof RANKS} */ (rankOf(card))];
}

/** Return whether a card may be played now. The server decides; the page only marks the cards. @param {Game} game @param {string} card */
export function fits({ pile, suit }, card) {
  const top = pile.at(-1) ?? "";
  return rankOf(card) === "8" || suitOf(card) === suit || rankOf(card) === rankOf(top);
}

/** Return cards in the order of a hand: by suit, black and red in turns, then by rank. @param {readonly string[]} cards */
export function sorted(cards) {
  const ranks = Object.keys(RANKS);
  const place = (/** @type {string} */ card) => "♣♦♠♥".indexOf(suitOf(card)) * 100 + ranks.indexOf(rankOf(card));
  return [...cards].sort((a, b) => place(a) - place(b));
}

/** Return the other players in the order of their turns after this person. @param {Game} game @param {string} you */
export function othersOf({ players }, you) {
  const own = players.findIndex((player) => player.id === you);
  return [...players.slice(own + 1), ...players.slice(0, Math.max(own, 0))];
}

/** Describe how many cards a player has. @param {Game} game @param {Player} player */
export function cardsOf({ status }, { cards }) {
  if (status === "waiting") return "ready";
  return cards === 1 ? "1 card" : `${cards || "no"} cards`;
}

/** Describe how often a player has won. @param {Player} player */
export function winsOf({ wins }) {
  return wins === 1 ? "1 win" : wins ? `${wins} wins` : "";
}

/** Describe the situation for a person. @param {Game} game @param {string} you */
export function situation(game, you) {
  const seated = game.players.some((player) => player.id === you);
  if (game.status === "playing") return game.turn === you ? "Your turn" : `${nameOf(game, game.turn)}’s turn`;
  if (game.status === "finished") return game.winner === you ? "You won" : `${nameOf(game, game.winner)} won`;
  if (game.players.length > 1) return seated ? "Deal when all are here" : "Waiting for the deal";
  return seated ? "Waiting for another player" : "Take a seat";
}

/** Describe what has happened last. @param {Game} game @param {string} you */
export function news(game, you) {
  if (game.status === "waiting") return "Two to four people play, and any number may watch.";
  if (!game.last) return "The cards are dealt.";
  const { by, card, suit, has_passed: hasPassed } = game.last;
  const who = by === you ? "You" : nameOf(game, by);
  if (card === null) return hasPassed ? `${who} passed, as no card is left to draw.` : `${who} drew a card.`;
  return `${who} played the ${cardName(card)}${suit ? ` and named ${suitName(suit)}` : ""}.`;
}

/** Describe the cards that may be played. @param {Game} game */
export function following({ pile, suit, status }) {
  const top = pile.at(-1);
  if (!top || status !== "playing") return "";
  const rank = rankName(top);
  const same = rank === "eight" ? "" : `, ${rank === "ace" ? "an" : "a"} ${rank}`;
  return `Next: ${suitName(suit)}${same} or an eight`;
}

/** Return the name of a player, shortened to fit into a sentence. @param {Game} game @param {string | null} id */
export function nameOf({ players }, id) {
  const letters = [...(players.find((player) => player.id === id)?.name ?? "Someone who left")];
  return letters.length > MOST_LETTERS ? `${letters.slice(0, MOST_LETTERS - 1).join("")}…` : letters.join("");
}
