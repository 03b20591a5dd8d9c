import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const SERVER = "http://localhost:8000";

// Vite wants a default export here.
export default defineConfig({
  plugins: [react()],
  // plait-client is a link to a folder with a React of its own, for its tests.
  resolve: { dedupe: ["react", "react-dom"] },
  server: { proxy: { "/threads": { target: SERVER, ws: true, changeOrigin: true, rewriteWsOrigin: true } } },
});
