//! The application that a command is about: `-a`, else the name in the configuration file of a
//! directory, else the directory's name.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::Context;
use client::ClientError;
use model::ApplicationName;
use recipe_core::manifest::{self, CORTEX_TOML, VERACONFIG};

use super::{App, output};

/// The size limit of configuration files, which are short.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

impl App {
    pub fn name(&self) -> anyhow::Result<ApplicationName> {
        self.name_in(Path::new("."))
    }

    /// Returns whether somebody says which application is meant, and not only where they are.
    pub fn is_named(&self) -> anyhow::Result<bool> {
        Ok(self.app.is_some() || configured(Path::new("."))?.is_some())
    }

    pub fn name_in(&self, directory: &Path) -> anyhow::Result<ApplicationName> {
        match &self.app {
            Some(name) => Ok(name.parse()?),
            None => named_by(directory),
        }
    }
}

/// Set once the name of a directory was taken for that of an application.
static GUESSED: OnceLock<()> = OnceLock::new();

/// Returns what to do about an application that is not there, where nobody had named one.
pub fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let guessed = GUESSED.get().is_some() && is_not_there(error);
    guessed.then_some(
        "That is the name of this directory, as no application was named: `-a NAME` names one.",
    )
}

/// Returns whether the API answered that there is no such application.
pub fn is_not_there(error: &anyhow::Error) -> bool {
    let problem = error.downcast_ref::<ClientError>();
    matches!(problem, Some(ClientError::Problem(problem)) if problem.code == "no_application")
}

fn named_by(directory: &Path) -> anyhow::Result<ApplicationName> {
    if let Some(name) = configured(directory)? {
        return Ok(name);
    }
    GUESSED.set(()).ok();
    let absolute = directory.canonicalize().with_context(|| {
        format!("{} cannot be read; name the application with -a", directory.display())
    })?;
    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(name.parse().unwrap_or_else(|_| {
        let suggested = ApplicationName::suggest(&name);
        output::say(&format!(
            "The application of '{name}' is called {suggested} (another name: `name` in {CORTEX_TOML}, \
             or `cortex push -a NAME`)"
        ));
        suggested
    }))
}

fn configured(directory: &Path) -> anyhow::Result<Option<ApplicationName>> {
    let toml = read(&directory.join(CORTEX_TOML))?;
    if let Some(text) = toml {
        return Ok(manifest::read_cortex_toml(&text)?.name);
    }
    match read(&directory.join(VERACONFIG))? {
        Some(text) => Ok(manifest::read_veraconfig(&text)?.name),
        None => Ok(None),
    }
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            let shown = path.display();
            anyhow::ensure!(
                metadata.len() <= FILE_BYTES_MAX,
                "{shown} is too large: name the application with -a"
            );
            let bytes = std::fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
            let text = recipe_core::source::decoded(&bytes)
                .with_context(|| format!("{shown} is not UTF-8 text: save it as UTF-8"))?;
            Ok(Some(text.into_owned()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_flag_then_the_files_then_the_directory() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("My Shop");
        std::fs::create_dir(&directory).unwrap();
        let name = |app: &App| app.name_in(&directory).unwrap().to_string();
        let unnamed = App { app: None };
        assert_eq!(name(&unnamed), "my-shop");
        std::fs::write(directory.join(CORTEX_TOML), "name = \"shop\"\n").unwrap();
        assert_eq!(name(&unnamed), "shop");
        assert_eq!(name(&App { app: Some("other".into()) }), "other");
        let error = App { app: Some("Bad Name".into()) }.name_in(&directory).unwrap_err();
        assert!(error.to_string().contains("bad-name"), "{error}");
    }
}
