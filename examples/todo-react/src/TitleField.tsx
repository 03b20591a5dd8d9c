/** A title while it is edited: Enter and leaving it keep what was typed, Escape does not. */

import { useEffect, useRef, useState } from "react";

interface TitleFieldProps {
  title: string;
  /** With undefined when it is over, also because the todo is gone. */
  onType: (draft: string | undefined) => void;
  /** With the title that it is to have, if that is another. */
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
    // Once: what it does is the same for all renders.
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
