"""``python -m rex_operator.cli``, for where the ``rex`` command is not installed."""

from rex_operator.cli import main

if __name__ == "__main__":
    main()
