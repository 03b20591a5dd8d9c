// @ts-check
/** The orders of the shop, and which of them were paid back. */

import { clone, find, write } from "../room.js";

/** @typedef {{number: number, what: string, cents: number, is_paid_back: boolean}} Order */

const euros = new Intl.NumberFormat(undefined, { style: "currency", currency: "EUR" });

/** @param {readonly Order[]} orders */
export function renderOrders(orders) {
  find("#orders").replaceChildren(...orders.map(renderOrder));
}

/** @param {Order} order */
function renderOrder({ number, what, cents, is_paid_back: isPaidBack }) {
  const element = clone("#order");
  write(find(".what", element), `${number}: ${what}`);
  write(find(".price", element), isPaidBack ? "paid back" : euros.format(cents / 100));
  element.classList.toggle("paid-back", isPaidBack);
  return element;
}
