import sqlite3

from pyramid.config import Configurator
from pyramid.response import Response


def connect(settings):
    connection = sqlite3.connect(settings["guestbook.database"])
    connection.execute("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, name TEXT)")
    return connection


def index(request):
    connection = connect(request.registry.settings)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM entry ORDER BY id")]
    finally:
        connection.close()
    lines = ["Guests:"] + [f"- {name}" for name in names]
    return Response("\n".join(lines) + "\n", content_type="text/plain", charset="utf-8")


def sign(request):
    name = request.POST.get("name", "").strip()
    if not name or len(name) > 80:
        return Response("name: 1 to 80 characters\n", status=400, content_type="text/plain")
    connection = connect(request.registry.settings)
    try:
        with connection:
            connection.execute("INSERT INTO entry (name) VALUES (?)", (name,))
    finally:
        connection.close()
    return Response("signed\n", status=201, content_type="text/plain")


def main(global_config, **settings):
    with Configurator(settings=settings) as config:
        config.add_route("index", "/", request_method="GET")
        config.add_view(index, route_name="index")
        config.add_route("sign", "/sign", request_method="POST")
        config.add_view(sign, route_name="sign")
    return config.make_wsgi_app()
