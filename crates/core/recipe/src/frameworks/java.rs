//! Java by Maven: Spring Boot, Vert.x, Pekko and every other project whose pom.xml builds a server.

use model::Recipe;
use model::release::{Portable, Step};

use super::{Framework, RecipeError, port_note, web_only};
use crate::source::SourceTree;

const POM: &str = "pom.xml";
/// What a pom.xml names when it is for the web, and what people call it.
const SERVERS: &[(&str, &str)] = &[
    ("spring-boot", "Spring Boot"),
    ("io.vertx", "Vert.x"),
    ("org.apache.pekko", "Pekko"),
    ("com.typesafe.akka", "Akka"),
];
/// Plugins that put everything into one archive which `java -jar` starts.
const PACKERS: &[&str] =
    &["spring-boot-maven-plugin", "maven-shade-plugin", "maven-assembly-plugin"];
/// The command that takes the largest archive, which holds the packages as well.
const TAKE_LARGEST: &str = "cp \"$(ls -S target/*.jar | grep -v -e '-sources\\.jar$' \
    -e '-javadoc\\.jar$' -e '/original-' | head -n 1)\" .cortex-app.jar";

pub struct Java;

impl Framework for Java {
    fn name(&self) -> &'static str {
        "java"
    }

    fn looks_for(&self) -> &'static str {
        "pom.xml of Maven"
    }

    fn detect(&self, tree: &SourceTree) -> Option<String> {
        let text = tree.text(POM)?;
        let server = SERVERS.iter().find(|(package, _)| text.contains(package));
        Some(match server {
            Some((_, name)) => format!("{POM} lists {name}"),
            None => format!("{POM} names a Java project"),
        })
    }

    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError> {
        let text = tree.text(POM).ok_or(RecipeError(format!("{POM} is missing or no text")))?;
        let maven = if tree.exists("mvnw") { "sh ./mvnw" } else { "mvn" };
        // Maven shares its packages between all applications; its own directory would be in HOME.
        let maven = format!(
            "env MAVEN_USER_HOME=\"$XDG_CACHE_HOME/maven\" {maven} -B -q -Dstyle.color=never -DskipTests \
             -Dmaven.repo.local=\"$XDG_CACHE_HOME/maven/repository\""
        );
        let (build, start) = if PACKERS.iter().any(|plugin| text.contains(plugin)) {
            (format!("{maven} package && {TAKE_LARGEST}"), "-jar .cortex-app.jar".to_owned())
        } else {
            let main = main_class(tree, text)?;
            let copy = "dependency:copy-dependencies -DincludeScope=runtime";
            let command = format!("{maven} package {copy} -DoutputDirectory=target/dependency");
            (command, format!("-cp 'target/classes:target/dependency/*' {main}"))
        };
        let mut notes = port_note(tree, "*.java", "System.getenv(\"PORT\")");
        // Spring Boot takes SERVER_ADDRESS and SERVER_PORT by itself.
        notes.retain(|_| !text.contains("spring-boot"));
        Ok(Recipe {
            build: vec![Step { name: "Building with Maven".into(), command: build }],
            portable: Some(Portable::default()),
            processes: web_only(format!("java $JAVA_OPTS {start}"), None),
            notes,
            ..Recipe::default()
        })
    }
}

/// Returns the `<mainClass>` of some plugin, or the only class with a `main`.
fn main_class(tree: &SourceTree, pom: &str) -> Result<String, RecipeError> {
    let named = pom.split("<mainClass>").nth(1).and_then(|rest| rest.split('<').next());
    let mut found: Vec<String> = named.map(|name| name.trim().to_owned()).into_iter().collect();
    if found.is_empty() {
        let main = |text: &str| text.contains("public static void main(");
        let files = tree.under("src/main/java");
        let files = files.filter(|(_, file)| file.text.as_deref().is_some_and(main));
        let class = |path: &str| {
            Some(path.strip_prefix("src/main/java/")?.strip_suffix(".java")?.replace('/', "."))
        };
        found.extend(files.filter_map(|(path, _)| class(path)));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._$".contains(c);
    match &found[..] {
        [class] if !class.is_empty() && class.chars().all(plain) => Ok(super::shell_word(class)),
        classes => Err(RecipeError(format!(
            "{POM} neither packs one archive (by {}) nor names the class to start{}: add one of \
             these plugins, or a Procfile with the line 'web: java -jar target/NAME.jar'",
            PACKERS[..2].join(" or "),
            match classes {
                [] => String::new(),
                classes => format!(", and these have a main: {}", classes.join(", ")),
            }
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], reason: &str, command: Result<&str, &str>) {
        let tree = SourceTree::from_pairs(files.iter().copied());
        assert_eq!(Java.detect(&tree).as_deref(), Some(reason));
        let found = Java.recipe(&tree).map(|r| r.processes.into_values().next().unwrap().command);
        match (found, command) {
            (Ok(found), Ok(command)) => assert_eq!(found, command),
            (Err(error), Err(words)) => assert!(error.0.contains(words), "{}", error.0),
            (found, _) => panic!("{files:?}: {found:?}"),
        }
    }

    const MAIN: &str = "class A { public static void main(String[] a) {} }";

    #[test]
    fn one_archive_is_preferred_to_a_class_path() {
        let spring = "<plugin><artifactId>spring-boot-maven-plugin</artifactId></plugin>";
        let jar = "java $JAVA_OPTS -jar .cortex-app.jar";
        check(&[(POM, spring)], "pom.xml lists Spring Boot", Ok(jar));
        let vertx = "<groupId>io.vertx</groupId> <artifactId>maven-shade-plugin</artifactId>";
        check(&[(POM, vertx)], "pom.xml lists Vert.x", Ok(jar));
        let pekko = "<groupId>org.apache.pekko</groupId><mainClass>a.B</mainClass>";
        let class_path = "java $JAVA_OPTS -cp 'target/classes:target/dependency/*' a.B";
        check(&[(POM, pekko)], "pom.xml lists Pekko", Ok(class_path));
        let one = [(POM, ""), ("src/main/java/a/B.java", MAIN), ("src/test/java/C.java", MAIN)];
        check(&one, "pom.xml names a Java project", Ok(class_path));
    }

    #[test]
    fn what_cannot_be_decided_is_asked() {
        let two = [(POM, ""), ("src/main/java/A.java", MAIN), ("src/main/java/B.java", MAIN)];
        check(&two, "pom.xml names a Java project", Err("have a main: A, B"));
        check(&[(POM, "")], "pom.xml names a Java project", Err("maven-shade-plugin"));
        let odd = [(POM, "<mainClass>${main}</mainClass>")];
        check(&odd, "pom.xml names a Java project", Err("${main}"));
        assert!(Java.recipe(&SourceTree::new()).is_err());
    }

    #[test]
    fn the_wrapper_is_used_and_the_port_is_remarked() {
        let files = [(POM, "maven-shade-plugin"), ("mvnw", ""), ("src/main/java/A.java", MAIN)];
        let recipe = Java.recipe(&SourceTree::from_pairs(files)).unwrap();
        assert!(recipe.build[0].command.contains("sh ./mvnw -B"), "{:?}", recipe.build);
        assert!(recipe.notes[0].contains("PORT"), "{:?}", recipe.notes);
    }
}
