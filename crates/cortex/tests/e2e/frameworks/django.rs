//! Django from PyPI: `django-admin startproject`, an application with a model, its migration and a
//! static file, under another directory's name.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{PACKAGES, walled_node};
use crate::journey::Journey;
use crate::outside::Site;
use crate::project::{edit, of_files, tool};

/// Returns a virtual environment with Django for generators: one for the run, if the run has a
/// place for it.
fn generator(directory: &Path) -> PathBuf {
    static ONE_MAKES_IT: Mutex<()> = Mutex::new(());
    let _only = ONE_MAKES_IT.lock().unwrap_or_else(PoisonError::into_inner);
    let place = std::env::var_os(PACKAGES).map_or(directory.to_owned(), PathBuf::from);
    let venv = place.join("django-generator");
    if !venv.join("bin/django-admin").exists() {
        tool(directory, "/usr/bin/python3", &["-m", "venv", venv.to_str().unwrap()]);
        let pip = venv.join("bin/pip");
        tool(directory, pip.to_str().unwrap(), &["install", "--quiet", "django"]);
    }
    venv
}

const VIEWS: &str = "
from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt
from .models import Note


@csrf_exempt
def index(request):
    if request.method == 'POST':
        Note.objects.create(text=request.POST['text'])
    notes = ', '.join(Note.objects.order_by('id').values_list('text', flat=True))
    return HttpResponse(f'My notes: {notes}.')
";

const MODELS: &str = "
from django.db import models


class Note(models.Model):
    text = models.CharField(max_length=80)
";

pub fn generate(directory: &Path) -> PathBuf {
    let admin = generator(directory).join("bin/django-admin");
    tool(directory, admin.to_str().unwrap(), &["startproject", "mysite"]);
    let project = directory.join("my-renamed-notes");
    std::fs::rename(directory.join("mysite"), &project).unwrap();
    project
}

fn add_notes(directory: &Path, project: &Path) {
    let python = generator(directory).join("bin/python");
    let python = python.to_str().unwrap();
    tool(project, python, &["manage.py", "startapp", "notes"]);
    of_files(
        project,
        &[
            ("notes/models.py", MODELS),
            ("notes/views.py", VIEWS),
            ("notes/static/notes.css", "p { color: navy; }\n"),
        ],
    );
    edit(
        &project.join("mysite/settings.py"),
        "INSTALLED_APPS = [",
        "INSTALLED_APPS = [\n    'notes',",
    );
    edit(&project.join("mysite/settings.py"), "DEBUG = True", "DEBUG = False");
    edit(&project.join("mysite/settings.py"), "ALLOWED_HOSTS = []", "ALLOWED_HOSTS = ['*']");
    let settings = project.join("mysite/settings.py");
    let text =
        std::fs::read_to_string(&settings).unwrap() + "\nSTATIC_ROOT = BASE_DIR / 'collected'\n";
    std::fs::write(&settings, text).unwrap();
    edit(
        &project.join("mysite/urls.py"),
        "urlpatterns = [",
        "from notes.views import index\n\nurlpatterns = [\n    path('', index),",
    );
    tool(project, python, &["manage.py", "makemigrations", "notes"]);
}

#[test]
fn a_project_with_a_model_and_static_files_goes_through_the_journey() {
    let mut node = walled_node();
    let project = generate(node.directory.path());
    add_notes(node.directory.path(), &project);
    let mut rows = Vec::new();
    Journey {
        name: "notes",
        project: &project,
        path: "/",
        first: "My notes:",
        second: "Our notes:",
        edit: &|project| edit(&project.join("notes/views.py"), "My notes:", "Our notes:"),
        spoil: &|project| edit(&project.join("notes/views.py"), "from .models", "from .missing"),
        complaint: "missing",
        in_hand_max: 4,
    }
    .run(&mut node, &mut |site| {
        site.get("/static/notes.css").assert_ok("color: navy");
        rows.push(format!("row {}", rows.len()));
        let form = format!("text={}", rows.last().unwrap().replace(' ', "+"));
        site.post_form("/", &[], &form).assert_ok(&format!("notes: {}.", rows.join(", ")));
    });
    // A new node process runs on the same data, and the rows are still there.
    node.up();
    node.await_ready("notes", "web", 2);
    let site = Site { host: "notes.localhost".into(), port: node.http_port };
    site.get("/").assert_ok(&rows.join(", "));
}
