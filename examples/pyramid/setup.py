from setuptools import setup

setup(
    name="guestbook",
    version="1.0",
    packages=["guestbook"],
    install_requires=["pyramid>=2", "plaster_pastedeploy", "waitress"],
    entry_points={"paste.app_factory": ["main = guestbook:main"]},
)
