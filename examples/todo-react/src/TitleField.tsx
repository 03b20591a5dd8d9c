/** A title while it is edited: Enter, or leaving the field, keeps the typed text; Escape discards it. */

import { useEffect, useRef, useState } from "react";

interface TitleFieldProps {
  title: string;
  /** Gets undefined when the editing ends, even because the todo was removed. */
  onType: (draft: string | undefined) => void;
  /** Gets the new title, if it has changed. */
  onEnd: (title?: string) => void;
}

export function TitleField({ title, onType, onEnd }: TitleFieldProps) {
  const [text, setText] = useState(title);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    field.current?.focus();
    field.current?.select();
    onType(title);
    return () => onType(undefined);
    // Run once, as `onType` does the same in all renders.
  }, []);
  const end = () => {
    const next = text.trim();
    onEnd(next && next !== title ? next : undefined);
  };
  return (
    <textarea
      ref={field}
      className="title"
      aria-label="Title"
      rows={1}
      value={text}
      maxLength={200}
      enterKeyHint="done"
      onChange={(event) => {
        const line = event.target.value.replaceAll(/\s*\n\s*/g, " ");
        setText(line);
        onType(line);
      }}
      onBlur={end}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.nativeEvent.isComposing) {
          event.preventDefault();
          end();
        }
        if (event.key === "Escape") onEnd();
      }}
    />
  );
}
