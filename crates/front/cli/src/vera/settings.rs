//! The settings in `.veraconfig`, for the commands about one application.

use std::path::Path;

use anyhow::{Context, bail};
use model::ApplicationName;
use recipe_core::manifest::{self, VERACONFIG};

#[derive(Debug, PartialEq)]
pub struct VeraSettings {
    /// The name as the file has it.
    pub shown: String,
    pub name: ApplicationName,
    pub framework: Option<String>,
    pub port: Option<u16>,
    /// The node that the file names, as `HOST:PORT`.
    pub node: Option<String>,
}

/// The section that names a node, and the port where it has none.
const NODE_SECTION: &str = "[miranda]";
const NODE_PORT: &str = "8205";

impl VeraSettings {
    pub fn read(directory: &Path) -> anyhow::Result<VeraSettings> {
        let path = directory.join(VERACONFIG);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "there is no {VERACONFIG} in this directory: go to the root of the application's \
                 source, or write one with the two lines '[app]' and 'name = MyApp'"
            ),
            read => read.with_context(|| format!("{VERACONFIG} cannot be read"))?,
        };
        VeraSettings::of(&text)
    }

    fn of(text: &str) -> anyhow::Result<VeraSettings> {
        let manifest = manifest::read_veraconfig(text)?;
        let name = manifest.name.context("the file names no application")?;
        let shown = written(text, "[app]", "name").unwrap_or_else(|| name.to_string());
        let node = written(text, NODE_SECTION, "host").map(|host| {
            let port = written(text, NODE_SECTION, "port");
            format!("{host}:{}", port.as_deref().unwrap_or(NODE_PORT))
        });
        let (framework, port) = (manifest.framework, manifest.port);
        Ok(VeraSettings { shown, name, framework, port, node })
    }
}

/// Returns a value as it was written: the name, for example, before it was made one that hosts can
/// have.
fn written(text: &str, section: &str, wanted: &str) -> Option<String> {
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.eq_ignore_ascii_case(section);
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else { continue };
        if key.trim().eq_ignore_ascii_case(wanted) {
            let value = value.split(" ;").next().unwrap_or(value).trim();
            return Some(value.chars().filter(|c| !c.is_control()).collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_shown_as_it_was_written() {
        let text = "[app]\n; This is the only required value.\nname = TestApp\n\n[miranda]\n\
                    host = my.miranda.host.address\nport = 8205 ; Default Miranda port number.\n";
        let settings = VeraSettings::of(text).unwrap();
        assert_eq!((settings.shown.as_str(), settings.name.as_str()), ("TestApp", "testapp"));
        assert_eq!((settings.framework, settings.port), (None, None));
        assert_eq!(settings.node.as_deref(), Some("my.miranda.host.address:8205"));
        let settings =
            VeraSettings::of("[App]\nName = a ; b\ntype = Rails\nport = 8000\n").unwrap();
        assert_eq!((settings.shown.as_str(), settings.port), ("a", Some(8000)));
        assert_eq!(settings.framework.as_deref(), Some("rails"));
        assert_eq!(settings.node, None);
        assert!(VeraSettings::of("[app]\n").is_err());
    }

    #[test]
    fn a_directory_without_the_file_is_told_of() {
        let directory = tempfile::tempdir().unwrap();
        let error = VeraSettings::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains(".veraconfig") && error.contains("name = "), "{error}");
    }
}
