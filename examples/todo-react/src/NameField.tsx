/** The user's own name, which the others see while it is typed. */

import { useState } from "react";

import { Icon } from "./Icon.tsx";

interface NameFieldProps {
  name: string;
  onRename: (name: string) => void;
}

export function NameField({ name, onRename }: NameFieldProps) {
  const [text, setText] = useState(name);
  return (
    <label className="own-name" title="Change your name">
      <input
        aria-label="Your name"
        value={text}
        maxLength={24}
        size={Math.max(4, text.length + 1)}
        spellCheck={false}
        autoComplete="off"
        enterKeyHint="done"
        onChange={(event) => {
          setText(event.target.value);
          if (event.target.value.trim()) onRename(event.target.value.trim());
        }}
        // An empty field goes back to the last name.
        onBlur={() => setText(name)}
        onKeyDown={(event) => event.key === "Enter" && event.currentTarget.blur()}
      />
      <Icon name="pen" />
    </label>
  );
}
