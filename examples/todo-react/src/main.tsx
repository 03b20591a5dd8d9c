/** Puts the list that the address names (`?list=groceries`) on the page. */

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./App.tsx";
import "./style.css";
import "./rows.css";

const query = new URLSearchParams(location.search);
// With `?renders`, each row shows how many times it has rendered.
document.documentElement.toggleAttribute("data-show-renders", query.has("renders"));

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App name={query.get("list") || "home"} />
  </StrictMode>,
);
