/** A title while it is edited: Enter and leaving it keep what was typed, Escape does not. */

import { useEffect, useRef, useState } from "react";

interface TitleFieldProps {
  title: string;
  onType: (draft: string) => void;
  /** With the title that it is to have, if that is another. */
  onEnd: (title?: string) => void;
}

export function TitleField({ title, onType, onEnd }: TitleFieldProps) {
  const [text, setText] = useState(title);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.select(), []);
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
      onFocus={() => onType(text)}
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
