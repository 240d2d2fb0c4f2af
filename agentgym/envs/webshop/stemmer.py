"""Porter's stemmer, with the two departures Lucene's ``PorterStemFilter`` makes.

Words of one or two letters are left alone, and the endings ``-bli`` and ``-logi`` are treated as in
Porter's own later programs. Written out here because ranking has to agree with Lucene term by term.
"""

_STEP2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_STEP3 = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_STEP4 = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_BY_LENGTH2 = sorted(_STEP2, key=len, reverse=True)
_BY_LENGTH3 = sorted(_STEP3, key=len, reverse=True)
_BY_LENGTH4 = sorted(_STEP4.split(), key=len, reverse=True)


def _is_consonant(word: str, at: int) -> bool:
    letter = word[at]
    if letter in "aeiou":
        return False
    if letter == "y":
        return at == 0 or not _is_consonant(word, at - 1)
    return True


def _measure(stem: str) -> int:
    """Count the vowel-to-consonant changes in ``stem``: Porter's m."""
    count, was_vowel = 0, False
    for at in range(len(stem)):
        vowel = not _is_consonant(stem, at)
        if was_vowel and not vowel:
            count += 1
        was_vowel = vowel
    return count


def _has_vowel(stem: str) -> bool:
    return any(not _is_consonant(stem, at) for at in range(len(stem)))


def _ends_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _ends_short_syllable(word: str) -> bool:
    """True for consonant-vowel-consonant at the end, the last not w, x or y."""
    last = len(word) - 1
    return (
        last >= 2
        and _is_consonant(word, last)
        and not _is_consonant(word, last - 1)
        and _is_consonant(word, last - 2)
        and word[last] not in "wxy"
    )


def _step1(word: str) -> str:
    """Plurals, -ed, -ing and a final y."""
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif not word.endswith("ss"):
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        for ending in ("ed", "ing"):
            if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
                word = _mend(word[: -len(ending)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mend(stem: str) -> str:
    """Restore the end of a stem that lost -ed or -ing."""
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _ends_double_consonant(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    if _measure(stem) == 1 and _ends_short_syllable(stem):
        return stem + "e"
    return stem


def _replace(word: str, endings: list[str], replacement: dict[str, str]) -> str:
    for ending in endings:
        if word.endswith(ending):
            stem = word[: -len(ending)]
            return stem + replacement[ending] if _measure(stem) > 0 else word
    return word


def _step4(word: str) -> str:
    for ending in _BY_LENGTH4:
        if word.endswith(ending):
            stem = word[: -len(ending)]
            if ending == "ion" and not stem.endswith(("s", "t")):
                return word
            return stem if _measure(stem) > 1 else word
    return word


def _step5(word: str) -> str:
    if word.endswith("e"):
        stem = word[:-1]
        measure = _measure(stem)
        if measure > 1 or (measure == 1 and not _ends_short_syllable(stem)):
            word = stem
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def porter_stem(word: str) -> str:
    """Return the stem of a lower-case ``word``.

    Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, as in Lucene 8.
    """
    if len(word) <= 2:
        return word
    word = _step1(word)
    word = _replace(word, _BY_LENGTH2, _STEP2)
    word = _replace(word, _BY_LENGTH3, _STEP3)
    return _step5(_step4(word))
