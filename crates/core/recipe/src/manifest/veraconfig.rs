//! `.veraconfig`, the configuration file of the thesis's client (its appendix A): an INI file with
//! the application's name and where its store was.

use super::{Manifest, ManifestError, VERACONFIG, application_name};

pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
    let error = |why: String| ManifestError { file: VERACONFIG, why };
    let mut manifest = Manifest { files: vec![VERACONFIG.into()], ..Manifest::default() };
    let mut section = String::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.split(" ;").next().unwrap_or(line).trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_lowercase();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(error(format!(
                "line {}: '[section]' or 'key = value' was expected",
                index + 1
            )));
        };
        let (key, value) = (key.trim().to_lowercase(), value.trim());
        let number = |what: &str| {
            value
                .parse::<u16>()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| error(format!("line {}: '{value}' is not a {what}", index + 1)))
        };
        match (section.as_str(), key.as_str()) {
            ("app", "name") => {
                manifest.name = Some(application_name(value, VERACONFIG, &mut manifest.notes));
            }
            ("app", "type" | "app-type") => manifest.framework = Some(value.to_lowercase()),
            ("app", "port" | "ariel-port") => manifest.port = Some(number("port")?),
            ("app", "instances") => {
                let process = manifest.processes.entry(model::ProcessType::web()).or_default();
                process.count = Some(number("number of instances")?.into());
            }
            // Users who push from elsewhere say so by `--url`.
            ("miranda", "host" | "port") => manifest.notes.push(format!(
                "{VERACONFIG}: [miranda] {key} was ignored: the node that takes the push is asked"
            )),
            ("app", "repo-type") => {}
            (section, key) => {
                manifest
                    .notes
                    .push(format!("{VERACONFIG}: [{section}] {key} was ignored: unknown"));
            }
        }
    }
    if manifest.name.is_none() {
        return Err(error("it has no 'name' in its section [app]: add 'name = my-app'".into()));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thesis_example_is_read() {
        let text = "[app]\n; This is the only required value.\nname = TestApp\n\n[miranda]\n\
                    host = my.miranda.host.address\nport = 8205 ; Default Miranda port number.\n";
        let manifest = parse(text).unwrap();
        assert_eq!(manifest.name.unwrap().as_str(), "testapp");
        assert_eq!(manifest.notes.len(), 3, "{:?}", manifest.notes);
    }

    #[test]
    fn command_line_values_may_stand_in_it() {
        let text = "[app]\nname = shop\ntype = rails\nport = 8000\ninstances = 5\n";
        let manifest = parse(text).unwrap();
        assert_eq!((manifest.port, manifest.framework.as_deref()), (Some(8000), Some("rails")));
        assert_eq!(manifest.processes[&model::ProcessType::web()].count, Some(5));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("", "no 'name'"),
            ("[app]\nname", "line 2"),
            ("[app]\nname = a\nport = 99999", "line 3: '99999' is not a port"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
