/** The names of members that only the modules of this package use: in the files that pages load, each is a letter. */

const NAMES = `
  shown isGone session pump tell phase resumesAt isContested outbox maxFrame parts regions isDone isElement isShown
  refold isDirty closedError inTurn isMoved freeAt heard insertion isReadonly isKept settle hasText toOps lookUp
  takeAlong hasJoined isLost isWaiting tellRefusal answerOf letPass rewind onShown isSending isBusy doubt failAll
  isAwaited keptAt takeFrames takeEvents undoMove hasValue passText mayMeanAnother takeIn newInsertion
`;
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

export const names = NAMES.trim().split(/\s+/);

/** Options for esbuild. A name has the same letter in each file, as files that are built apart share objects. */
export const MANGLED = {
  mangleProps: new RegExp(`^(?:${names.join("|")})$`),
  mangleCache: Object.fromEntries(names.map((name, index) => [name, LETTERS[index]])),
};
