import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
# Cortex gives each application a key of its own, the same for all of its releases.
SECRET_KEY = os.environ.get("SECRET_KEY", "for development only")
DEBUG = "SECRET_KEY" not in os.environ
# The router only passes on the hosts of this application.
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django.contrib.staticfiles", "guestbook"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "guestbook.urls"
WSGI_APPLICATION = "guestbook.wsgi.application"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
