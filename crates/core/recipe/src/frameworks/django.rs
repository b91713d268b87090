//! Django. An unmodified project works: what production needs and its settings leave out is given
//! from outside, and the settings file itself stays as it is.

use model::Recipe;
use model::release::{StaticMount, Step};

use super::python::path;
use super::{Framework, RecipeError, shell_word, sqlite, venv, web_only, web_stateless};
use crate::manifest::relative_path;
use crate::source::SourceTree;

const MANAGE: &str = "manage.py";
/// The directory in which static files are collected when the settings name none.
const COLLECTED: &str = "staticfiles";

pub struct Django;

impl Framework for Django {
    fn name(&self) -> &'static str {
        "django"
    }

    fn looks_for(&self) -> &'static str {
        "manage.py with django in it"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        tree.mentions(MANAGE, "django").then(|| format!("{MANAGE} names Django"))
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let manage = tree.text(MANAGE).ok_or_else(|| {
            RecipeError(format!("there is no {MANAGE}: push the directory that holds it"))
        })?;
        let module = settings_module(manage).ok_or_else(|| {
            let why = "does not say which settings to use: it needs the line \
                       os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'PROJECT.settings')";
            RecipeError(format!("{MANAGE} {why}"))
        })?;
        let settings = SettingsText::read(tree, &module);
        let mut notes = settings.notes();
        let command = start(tree, &settings, &module, &mut notes)?;
        let prepared = match command.contains("uvicorn") {
            true => venv::install(tree, &[&settings.generated_by(), "uvicorn"])?,
            false => venv::install_with_gunicorn(tree, &[&settings.generated_by()])?,
        };
        let mut build = Vec::new();
        let mut statics = Vec::new();
        let mut persist = settings.databases();
        if settings.has_static_files() {
            build.push(collect_static(&module));
            statics.extend(settings.static_mount(&mut notes));
        }
        if let Some(media) = settings.path_of("MEDIA_ROOT") {
            statics.extend(settings.prefix_of("MEDIA_URL").map(|prefix| StaticMount {
                prefix,
                directory: media.clone(),
                fallback: None,
            }));
            persist.push(media);
        }
        let release = match settings.has("DATABASES") {
            true => vec![migrate()],
            false => Vec::new(),
        };
        let mut recipe = Recipe {
            build,
            release,
            processes: match settings.keep_nothing() {
                true => web_stateless(command, None),
                false => web_only(command, None),
            },
            path: path(true),
            persist,
            statics,
            notes,
            ..Recipe::default()
        };
        prepared.give(&mut recipe);
        Ok(recipe)
    }
}

/// Returns what is in quotes after `DJANGO_SETTINGS_MODULE`.
fn settings_module(manage: &str) -> Option<String> {
    let after = manage.split_once("DJANGO_SETTINGS_MODULE")?.1;
    let rest = after.trim_start_matches(['"', '\'']);
    let module = rest.split(['"', '\'']).nth(1)?;
    let plain = |c: char| c.is_alphanumeric() || "._".contains(c);
    (!module.is_empty() && module.chars().all(plain)).then(|| module.to_owned())
}

fn start(
    tree: &SourceTree,
    settings: &SettingsText<'_>,
    module: &str,
    notes: &mut Vec<String>,
) -> Result<String, RecipeError> {
    let gunicorn = |target: &str| format!("{} {}", venv::gunicorn(), shell_word(target));
    let importable = |target: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._:".contains(c);
        let path = target.split(':').next().unwrap_or_default().replace('.', "/");
        let exists = [".py", "/__init__.py"].map(|end| format!("{path}{end}"));
        target.chars().all(plain) && exists.iter().any(|path| tree.exists(path))
    };
    let named = |key: &str| {
        let (module, variable) = settings.text_of(key)?.rsplit_once('.')?;
        Some(format!("{module}:{variable}")).filter(importable)
    };
    if let Some(target) = named("WSGI_APPLICATION") {
        return Ok(gunicorn(&target));
    }
    let asgi = |target: &str| {
        format!(
            "{}/uvicorn --host \"$HOST\" --port \"$PORT\" --no-access-log {}",
            venv::BIN,
            shell_word(target)
        )
    };
    if let Some(target) = named("ASGI_APPLICATION") {
        return Ok(asgi(&target));
    }
    let beside = |file: &str| {
        let package = module.split('.').next().unwrap_or(module);
        let own = format!("{package}/{file}.py");
        let others: Vec<&str> = tree.named(&format!("{file}.py")).map(|(path, _)| path).collect();
        let path = if tree.exists(&own) { own } else { (*others.first()?).to_owned() };
        Some((
            format!("{}:application", path.trim_end_matches(".py").replace('/', ".")),
            others.len(),
        ))
    };
    if let Some((target, found)) = beside("wsgi") {
        if found > 1 {
            notes.push(format!("of {found} files wsgi.py, '{target}' is started"));
        }
        return Ok(gunicorn(&target));
    }
    match beside("asgi") {
        Some((target, _)) => Ok(asgi(&target)),
        None => Err(RecipeError(
            "there is no wsgi.py or asgi.py: add the one that 'django-admin startproject' makes"
                .into(),
        )),
    }
}

/// Returns the step that collects static files. STATIC_ROOT is set from outside if the settings
/// leave it out, so that nobody's file is touched. `DISABLE_COLLECTSTATIC` is what people know from
/// elsewhere.
fn collect_static(module: &str) -> Step {
    let program = format!(
        "import os, sys; sys.path.insert(0, os.getcwd()); \
         os.environ.setdefault(\"DJANGO_SETTINGS_MODULE\", \"{module}\"); \
         import django; django.setup(); \
         from django.conf import settings; \
         from django.core.management import call_command, get_commands; \
         settings.STATIC_ROOT = settings.STATIC_ROOT or os.path.abspath(\"{COLLECTED}\"); \
         call_command(\"collectstatic\", interactive=False) \
         if \"collectstatic\" in get_commands() and settings.STATIC_URL else \
         print(\"The settings serve no static files, so none are collected.\")"
    );
    let command = format!(
        "if [ \"${{DISABLE_COLLECTSTATIC:-0}}\" != 0 ]; then \
         echo 'DISABLE_COLLECTSTATIC is set, so it is left out.'; \
         else {}/python -c '{program}'; fi",
        venv::BIN
    );
    Step { name: "Collecting static files".into(), command }
}

/// Returns the step that migrates. Settings without a database have one all the same, whose engine
/// refuses everything: they are asked as manage.py itself loads them; anything else that goes wrong
/// is for the migration to say.
fn migrate() -> Step {
    let ask = "import sys; from django.conf import settings; \
               sys.exit(3 if all(one.get(\"ENGINE\", \"\") in (\"\", \"django.db.backends.dummy\") \
               for one in settings.DATABASES.values()) else 0)";
    let manage = format!("{}/python {MANAGE}", venv::BIN);
    let command = format!(
        "code=0; {manage} shell -c '{ask}' </dev/null >/dev/null 2>&1 || code=$?; \
         if [ $code = 3 ]; then echo 'The settings name no database, so nothing is migrated.'; \
         else {manage} migrate --noinput; fi"
    );
    Step { name: "Migrating the database".into(), command }
}

/// The settings' text, and of a package all its modules': read by lines, never evaluated.
struct SettingsText<'a> {
    file: String,
    texts: Vec<&'a str>,
}

impl<'a> SettingsText<'a> {
    fn read(tree: &'a SourceTree, module: &str) -> SettingsText<'a> {
        let path = module.replace('.', "/");
        let file = match format!("{path}.py") {
            file if tree.exists(&file) => file,
            _ => format!("{path}/__init__.py"),
        };
        // Split settings import from modules beside them.
        let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
        let split = directory.ends_with("settings");
        let beside = tree.under(directory).filter(|(path, _)| {
            split && path.ends_with(".py") && **path != *file && !path.contains("test")
        });
        let beside = beside.filter_map(|(_, file)| file.text.as_deref());
        let texts = tree.text(&file).into_iter().chain(beside).collect();
        SettingsText { file, texts }
    }

    /// Returns the right side of `KEY = …` at the left margin; the last one counts, as in Python.
    fn value_of(&self, key: &str) -> Option<&'a str> {
        let assigned = |text: &&'a str| {
            text.lines().rev().find_map(|line| {
                let rest = line.strip_prefix(key)?.trim_start();
                rest.strip_prefix('=').filter(|rest| !rest.starts_with('=')).map(str::trim)
            })
        };
        self.texts.iter().find_map(assigned)
    }

    fn has(&self, key: &str) -> bool {
        self.value_of(key).is_some() || self.texts.iter().any(|text| text.contains(key))
    }

    /// Returns the last text in quotes, also of `BASE_DIR / "static"` and `os.path.join(BASE_DIR,
    /// 'static')`.
    fn text_of(&self, key: &str) -> Option<&'a str> {
        let value = self.value_of(key)?;
        let code = value.split(" #").next().unwrap_or(value);
        let texts: Vec<&str> = code.split(['"', '\'']).skip(1).step_by(2).collect();
        texts.last().copied()
    }

    /// Returns a path inside the project, if it is one and can be read off.
    fn path_of(&self, key: &str) -> Option<String> {
        let value = self.value_of(key)?;
        let based =
            value.contains("BASE_DIR") || value.contains("ROOT") || value.starts_with(['"', '\'']);
        let parts: Vec<&str> = value.split(['"', '\'']).skip(1).step_by(2).collect();
        let known = based && !value.contains("environ") && !value.contains("env(");
        if known && !parts.is_empty() { relative_path(&parts.join("/")).ok() } else { None }
    }

    /// Returns the value as a mount's prefix; `None` if it names another host.
    fn prefix_of(&self, key: &str) -> Option<String> {
        let url = self.text_of(key)?;
        let inner = url.trim_matches('/');
        (!inner.is_empty() && !inner.contains(':') && !url.starts_with("//"))
            .then(|| format!("/{inner}/"))
    }

    fn has_static_files(&self) -> bool {
        self.texts.iter().any(|text| text.contains("django.contrib.staticfiles"))
            && self.value_of("STATIC_URL").is_some()
    }

    fn static_mount(&self, notes: &mut Vec<String>) -> Option<StaticMount> {
        let directory = match self.value_of("STATIC_ROOT") {
            None => Some(COLLECTED.to_owned()),
            Some(_) => self.path_of("STATIC_ROOT"),
        };
        let mount = directory.zip(self.prefix_of("STATIC_URL"));
        if mount.is_none() {
            notes.push(format!(
                "{}: STATIC_ROOT or STATIC_URL is computed, so the application must serve its \
                 static files itself (whitenoise does)",
                self.file
            ));
        }
        mount.map(|(directory, prefix)| StaticMount { prefix, directory, fallback: None })
    }

    fn databases(&self) -> Vec<String> {
        let mut paths: Vec<String> =
            self.texts.iter().flat_map(|text| sqlite::named_in(text)).collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns whether the data are in a database server, sessions too, so that instances answer
    /// alike.
    fn keep_nothing(&self) -> bool {
        let says = |word: &str| {
            let mut lines = self.texts.iter().flat_map(|text| text.lines());
            lines.any(|line| !line.trim_start().starts_with('#') && line.contains(word))
        };
        let server = ["backends.postgresql", "backends.mysql", "backends.oracle"]
            .iter()
            .any(|engine| says(engine))
            || says("dj_database_url") && !says("default=");
        let in_memory =
            ["sqlite", "LocMemCache", "InMemoryChannelLayer", "sessions.backends.cache"]
                .iter()
                .any(|word| says(word));
        server && !in_memory && !says("sessions.backends.file")
    }

    /// Returns the version that `startproject` writes into the settings.
    fn generated_by(&self) -> String {
        let version = self.texts.iter().find_map(|text| {
            let rest = text.split_once("using Django ")?.1;
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let version = rest[..end].trim_end_matches('.');
            (version.split('.').count() >= 2).then(|| version.to_owned())
        });
        version.map_or("Django".into(), |version| format!("Django~={version}"))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let debug = self.value_of("DEBUG") == Some("True");
        let no_hosts = self.value_of("ALLOWED_HOSTS") == Some("[]");
        if debug {
            notes.push(format!(
                "{}: DEBUG = True shows the code of failing pages to everybody; set it to False \
                 before others use the application",
                self.file
            ));
        }
        if no_hosts && debug {
            notes.push(format!(
                "{}: ALLOWED_HOSTS is empty, so only localhost and names ending in .localhost are \
                 answered; add the application's domains",
                self.file
            ));
        } else if no_hosts {
            notes.push(format!(
                "{}: ALLOWED_HOSTS is empty and DEBUG is off, so every request is refused; add the \
                 application's host names, or \"*\", as the router passes on only those",
                self.file
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGE_TEXT: &str =
        "import django\n    os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\n";
    const GENERATED: &str = "\"\"\"\nGenerated by 'django-admin startproject' using Django 5.2.19.\n\"\"\"\n\
        DEBUG = True\nALLOWED_HOSTS = []\nINSTALLED_APPS = [\n    'django.contrib.staticfiles',\n]\n\
        WSGI_APPLICATION = 'shop.wsgi.application'\nDATABASES = {\n    'default': {\n\
        \x20       'NAME': BASE_DIR / 'db.sqlite3',\n    }\n}\nSTATIC_URL = 'static/'\n";

    fn recipe(settings: &str, extra: &[(&str, &str)]) -> Result<Recipe, RecipeError> {
        let base =
            [("manage.py", MANAGE_TEXT), ("shop/settings.py", settings), ("shop/wsgi.py", "")];
        Django.recipe(&SourceTree::from_pairs(base.iter().chain(extra).copied()))
    }

    fn web(recipe: &Recipe) -> &str {
        &recipe.processes.values().next().unwrap().command
    }

    #[test]
    fn a_generated_project_needs_nothing() {
        let recipe = recipe(GENERATED, &[]).unwrap();
        assert!(recipe.build[1].name.starts_with("Adding Django~=5.2.19, gunicorn"));
        assert!(recipe.build[3].command.contains("collectstatic"));
        assert!(web(&recipe).ends_with("--threads 8 shop.wsgi:application"));
        assert_eq!(recipe.persist, ["db.sqlite3"]);
        assert_eq!(
            (&*recipe.statics[0].prefix, &*recipe.statics[0].directory),
            ("/static/", "staticfiles")
        );
        assert!(recipe.release[0].command.contains("manage.py migrate --noinput; fi"));
        assert_eq!(recipe.notes.len(), 2, "{:?}", recipe.notes);
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        let settings = "ALLOWED_HOSTS = [\"*\"]\nINSTALLED_APPS = ['django.contrib.staticfiles']\n\
            STATIC_URL = '/assets/'\nSTATIC_ROOT = os.path.join(BASE_DIR, 'var', 'static')\n\
            MEDIA_URL = '/media/'\nMEDIA_ROOT = BASE_DIR / \"media\"\n";
        let full = recipe(settings, &[("requirements.txt", "django\ngunicorn\n")]).unwrap();
        let mounts: Vec<(&str, &str)> =
            full.statics.iter().map(|mount| (&*mount.prefix, &*mount.directory)).collect();
        assert_eq!(mounts, [("/assets/", "var/static"), ("/media/", "media")]);
        assert_eq!(full.persist, ["media"]);
        assert!(full.release.is_empty() && full.notes.is_empty(), "{:?}", full.notes);
        assert!(full.build[1].command.ends_with("-r requirements.txt"));
        let cdn = settings.replace("'/assets/'", "'https://cdn.example.org/'");
        assert!(recipe(&cdn, &[]).unwrap().notes[0].contains("STATIC_URL"));
    }

    #[test]
    fn instances_are_two_where_a_database_server_keeps_the_data() {
        let count = |settings: &str| {
            let recipe = recipe(settings, &[]).unwrap();
            recipe.processes.into_values().next().unwrap().default_count
        };
        let server = "DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql'}}\n";
        assert_eq!(count(server), 2);
        assert_eq!(count("DATABASES = {'default': dj_database_url.config()}\n"), 2);
        assert_eq!(count("DATABASES = {'default': dj_database_url.config(default='sqlite')}\n"), 1);
        assert_eq!(count(GENERATED), 1);
        for kept in ["CHANNEL_LAYERS = 'InMemoryChannelLayer'", "x = 'backends.sqlite3'"] {
            assert_eq!(count(&format!("{server}{kept}\n")), 1, "{kept}");
        }
    }

    #[test]
    fn split_settings_and_asgi_are_found() {
        let manage = MANAGE_TEXT.replace("shop.settings", "config.settings.production");
        let tree = SourceTree::from_pairs([
            ("manage.py", manage.as_str()),
            ("config/settings/production.py", "from .base import *\nDEBUG = False\n"),
            (
                "config/settings/base.py",
                "DATABASES = {}\nASGI_APPLICATION = 'config.asgi.application'\n",
            ),
            ("config/asgi.py", ""),
        ]);
        let recipe = Django.recipe(&tree).unwrap();
        assert!(
            web(&recipe).contains("uvicorn") && web(&recipe).ends_with("config.asgi:application")
        );
        assert!(recipe.build[1].command.contains("has uvicorn ||"));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(Django.recipe(&SourceTree::new()).unwrap_err().0.contains("manage.py"));
        let tree = SourceTree::from_pairs([("manage.py", "import django\n")]);
        assert!(Django.recipe(&tree).unwrap_err().0.contains("DJANGO_SETTINGS_MODULE"));
        let tree = SourceTree::from_pairs([("manage.py", MANAGE_TEXT), ("shop/settings.py", "")]);
        assert!(Django.recipe(&tree).unwrap_err().0.contains("wsgi.py"));
    }
}
