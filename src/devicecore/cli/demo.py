import click
@click.command()
def demo() -> int:
    """."""
    return 0
