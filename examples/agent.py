"""An agent that owns its loop and knows nothing of envrl: JSON lines in, JSON lines out (own_loop.py)."""

import json
import re

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def ask(**question):
    """Sends one question and waits for its answer."""
    print(json.dumps(question), flush=True)
    return json.loads(input())


def read_call(text):
    """The first tool call of a turn; None where there is none that can be read."""
    try:
        call = json.loads(CALL.search(text)[1])
        return {"name": call["name"], "arguments": call["arguments"]}
    except (TypeError, ValueError, KeyError):
        return None


def main():
    """One task: think, act, look, until the game is over or the model stops acting."""
    messages = json.loads(input())["messages"]
    done = False
    while not done:
        text = ask(complete=messages)["text"]
        messages.append({"role": "assistant", "content": text})
        call = read_call(text)
        if call is None:
            break
        answer = ask(call=call)
        messages.append({"role": "tool", "name": call["name"], "content": answer["result"]})
        done = answer["done"]
    print(json.dumps({"finish": True}))


if __name__ == "__main__":
    main()
