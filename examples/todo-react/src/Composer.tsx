/** The field for a new todo; the others see the text while it is typed. */

import { useState } from "react";
import type { FormEvent } from "react";

import { Icon } from "./Icon.tsx";
import { add } from "./list.ts";
import type { TodoList } from "./list.ts";
import { NEW, hue } from "./people.ts";
import type { Person, Show } from "./people.ts";

interface ComposerProps {
  list: TodoList;
  /** Another person who is writing a todo. */
  writer: Person | undefined;
  onShow: Show;
}

export function Composer({ list, writer, onShow }: ComposerProps) {
  const [title, setTitle] = useState("");
  const type = (text: string) => {
    setTitle(text);
    onShow(text ? { at: NEW, draft: text } : { at: undefined, draft: undefined });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const text = title.trim();
    if (!text) return;
    type("");
    // A refused title comes back for a change, unless the next title has been begun.
    add(list, text).catch(() => setTitle((begun) => begun || text));
  };
  return (
    <>
      <form className="composer" onSubmit={submit}>
        <input
          value={title}
          onChange={(event) => type(event.target.value)}
          onBlur={() => onShow({ at: undefined, draft: undefined })}
          placeholder="What is to be done?"
          aria-label="What is to be done?"
          maxLength={200}
          enterKeyHint="done"
        />
        <button className="primary" aria-label="Add">
          <Icon name="plus" />
        </button>
      </form>
      {writer && (
        <p className="ghost" style={hue(writer)}>
          <span className="tag">{writer.name}</span>
          <span className="draft">{writer.draft}</span>
        </p>
      )}
    </>
  );
}
