"""Machine code as nvdisasm prints it with encodings, from what a person writes."""


def machine_code(*lines):
    """Return a listing of labels and of pairs of an instruction and how it is scheduled.

    ``stall``: cycles until the next one may issue; ``sets`` and ``reads``: the scoreboards of its result and of its
    operands; ``waits``: those that it waits for.
    """
    text, place = [], 0
    for line in lines:
        if isinstance(line, str):
            text.append(line)
            continue
        instruction, how = line
        fields = (
            (how.get("stall", 1), 105),
            (how.get("sets", 7), 110),
            (how.get("reads", 7), 113),
            (sum(1 << board for board in how.get("waits", ())), 116),
        )
        code = sum(value << bit for value, bit in fields)
        text.append(f"        /*{place:04x}*/    {instruction} ;    /* 0x{code & (1 << 64) - 1:016x} */")
        text.append(f"                                                /* 0x{code >> 64:016x} */")
        place += 16
    return "\n".join(text) + "\n"
