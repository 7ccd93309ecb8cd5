"""The expressions of config folders."""
import re


def evaluate(expression, names):
    """A geometry or where expression of the folder's language: whole numbers."""
    if isinstance(expression, int):
        return expression
    text = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or ")).replace("/", "//")
    functions = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b)}
    return int(eval(text, {"__builtins__": {}}, {**functions, **names}))  # from this repository's own folders
