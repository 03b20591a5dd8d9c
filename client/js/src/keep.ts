/** Keeping a client's unanswered changes in a storage, as an option of the client. */

import { AbandonedQueues } from "./abandoned.js";
import { storageKey } from "./options.js";
import type { Keeper } from "./options.js";
import { claimSlot, pageLocks } from "./storage.js";
import type { StorageLike } from "./storage.js";

/** Returns the option that keeps a client's id and unanswered changes for the next page, in localStorage or the like. */
export function keepIn(storage: StorageLike): Keeper {
  return {
    storage,
    claim: (options, isClosing) => claimSlot(storage, storageKey(options), pageLocks(), isClosing),
    newQueues(options, onEvent) {
      if (options.state === false) throw new TypeError("a client without the state has no changes to keep");
      return new AbandonedQueues(storage, options, onEvent);
    },
  };
}
