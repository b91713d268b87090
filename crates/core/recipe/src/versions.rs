//! Ranges of versions as the files of different languages write them, and which versions they hold.
//! Where languages disagree on a sign (`~`, a bare number), the dialect decides.

/// Characters of a version; longer texts are no version of anything.
const TEXT_CHARS_MAX: usize = 200;

/// The numbers of a version, the weightiest first. What follows them (`rc1`, `-p648`) is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramVersion(Vec<u64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PEP 440, with Poetry's `^` and `~`.
    Python,
    /// RubyGems, Mix.
    Ruby,
    /// npm, Cargo.
    Npm,
    Composer,
}

/// A range of versions: any of these alternatives, each of which is all of its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRange(Vec<Vec<Bound>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    AtLeast(ProgramVersion),
    Above(ProgramVersion),
    AtMost(ProgramVersion),
    Below(ProgramVersion),
    /// The version begins with these numbers.
    Like(ProgramVersion),
    Exactly(ProgramVersion),
    Not(Box<Bound>),
}

impl ProgramVersion {
    /// Parses a version: `v22.1.0`, `3.13.0rc1`, `3.1.2p20`.
    pub fn parse(text: &str) -> Option<ProgramVersion> {
        let mut numbers = Vec::new();
        let mut rest = text.trim().trim_start_matches(['v', 'V']);
        loop {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            numbers.push(rest[..end].parse().ok()?);
            match rest[end..].strip_prefix('.') {
                Some(next) if next.starts_with(|c: char| c.is_ascii_digit()) => rest = next,
                _ => return Some(ProgramVersion(numbers)),
            }
        }
    }

    pub fn numbers(&self) -> &[u64] {
        &self.0
    }

    fn at(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    fn starts_with(&self, prefix: &ProgramVersion) -> bool {
        prefix.0.iter().enumerate().all(|(index, number)| self.at(index) == *number)
    }

    /// Returns the first version that does not begin with the first `count` of these numbers.
    fn after(&self, count: usize) -> ProgramVersion {
        let mut numbers: Vec<u64> = (0..count.max(1)).map(|index| self.at(index)).collect();
        if let Some(last) = numbers.last_mut() {
            *last = last.saturating_add(1);
        }
        ProgramVersion(numbers)
    }
}

impl PartialOrd for ProgramVersion {
    fn partial_cmp(&self, other: &ProgramVersion) -> Option<std::cmp::Ordering> {
        let count = self.0.len().max(other.0.len());
        let pairs = (0..count).map(|index| self.at(index).cmp(&other.at(index)));
        Some(pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then))
    }
}

impl std::fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl VersionRange {
    /// Parses a range; `None` if the text is none in this dialect.
    pub fn parse(dialect: Dialect, text: &str) -> Option<VersionRange> {
        if text.chars().count() > TEXT_CHARS_MAX {
            return None;
        }
        let text = text.replace("||", "|");
        let alternatives: Option<Vec<Vec<Bound>>> =
            text.split('|').map(|part| all_of(dialect, part)).collect();
        alternatives.map(VersionRange)
    }

    pub fn holds(&self, version: &ProgramVersion) -> bool {
        self.0.iter().any(|bounds| bounds.iter().all(|bound| bound.holds(version)))
    }
}

impl Bound {
    fn holds(&self, version: &ProgramVersion) -> bool {
        match self {
            Bound::AtLeast(bound) => version >= bound,
            Bound::Above(bound) => version > bound,
            Bound::AtMost(bound) => version <= bound,
            Bound::Below(bound) => version < bound,
            Bound::Like(prefix) => version.starts_with(prefix),
            Bound::Exactly(other) => version.partial_cmp(other) == Some(std::cmp::Ordering::Equal),
            Bound::Not(bound) => !bound.holds(version),
        }
    }
}

const SIGNS: &[char] = &['<', '>', '=', '!', '~', '^'];

/// Parses `>=3.9, <3.12`, `>= 18 < 21`, `1.2 - 2.3`.
fn all_of(dialect: Dialect, text: &str) -> Option<Vec<Bound>> {
    if let Some((low, high)) = text.split_once(" - ") {
        let low = ProgramVersion::parse(low)?;
        return Some(vec![Bound::AtLeast(low), at_most(dialect, high.trim())?]);
    }
    let mut bounds = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let after = rest.trim_start_matches(SIGNS);
        let sign = &rest[..rest.len() - after.len()];
        let after = after.trim_start();
        let end = after.find(|c: char| c == ',' || c.is_whitespace() || SIGNS.contains(&c));
        let (word, next) = after.split_at(end.unwrap_or(after.len()));
        bounds.extend(bounds_of(dialect, sign, word)?);
        rest = next.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
    }
    Some(bounds)
}

fn bounds_of(dialect: Dialect, sign: &str, word: &str) -> Option<Vec<Bound>> {
    // Composer's flags of stability and PEP 440's epochs and local parts mean nothing here.
    let word = word.split(['@', '+']).next().unwrap_or(word);
    let any = ["*", "x", "X"].contains(&word) || (word.is_empty() && sign.is_empty());
    if any {
        return Some(Vec::new());
    }
    let version = ProgramVersion::parse(word)?;
    let tail = word
        .trim_start_matches(['v', 'V'])
        .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let wild = ["*", "x", "X"].iter().any(|x| tail.split('.').next() == Some(x));
    // `1.x.2` and the like begin with the numbers that are there.
    let partial = wild || version.0.len() < 3;
    let count = version.0.len();
    let npm = dialect == Dialect::Npm;
    let bound = match sign {
        "" | "=" if partial => Bound::Like(version),
        "==" | "===" if wild || (partial && dialect != Dialect::Python) => Bound::Like(version),
        "" if dialect == Dialect::Python || dialect == Dialect::Ruby => Bound::Like(version),
        "" | "=" | "==" | "===" => Bound::Exactly(version),
        "!=" if wild || partial => Bound::Not(Box::new(Bound::Like(version))),
        "!=" | "<>" => Bound::Not(Box::new(Bound::Exactly(version))),
        ">=" | "=>" => Bound::AtLeast(version),
        ">" if npm && partial => Bound::AtLeast(version.after(count)),
        ">" => Bound::Above(version),
        "<=" | "=<" => return Some(vec![at_most(dialect, word)?]),
        "<" => Bound::Below(version),
        "^" => {
            let first = version.0.iter().position(|number| *number > 0);
            let count = first.map_or(count, |first| first + 1);
            return Some(between(version, count));
        }
        "~>" | "~=" => return Some(between(version, count.saturating_sub(1))),
        "~" if dialect == Dialect::Composer => {
            return Some(between(version, count.saturating_sub(1)));
        }
        "~" => return Some(between(version, count.min(2))),
        _ => return None,
    };
    Some(vec![bound])
}

fn between(version: ProgramVersion, count: usize) -> Vec<Bound> {
    let end = Bound::Below(version.after(count));
    vec![Bound::AtLeast(version), end]
}

/// Returns the bound of `<=`. npm and Composer read `<=18` as "no 19"; for Python it is 18.0.0.
fn at_most(dialect: Dialect, word: &str) -> Option<Bound> {
    let version = ProgramVersion::parse(word)?;
    let whole = version.0.len() >= 3 || matches!(dialect, Dialect::Python | Dialect::Ruby);
    let count = version.0.len();
    Some(if whole { Bound::AtMost(version) } else { Bound::Below(version.after(count)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dialect: Dialect, range: &str, fitting: &[&str], others: &[&str]) {
        let parsed = VersionRange::parse(dialect, range).unwrap_or_else(|| panic!("{range}"));
        let holds = |text: &&str| parsed.holds(&ProgramVersion::parse(text).unwrap());
        for text in fitting {
            assert!(holds(text), "{range} holds {text}: {parsed:?}");
        }
        for text in others {
            assert!(!holds(text), "{range} does not hold {text}: {parsed:?}");
        }
    }

    #[test]
    fn ranges_of_npm_are_understood() {
        let check = |range, fitting: &[&str], others: &[&str]| {
            check(Dialect::Npm, range, fitting, others);
        };
        check("22.x", &["22.0.0", "22.9.1"], &["21.9.9", "23.0.0"]);
        check("^18.17.0", &["18.17.0", "18.20.4"], &["18.16.9", "19.0.0"]);
        check("^0.2.3", &["0.2.9"], &["0.3.0", "1.0.0"]);
        check("^18", &["18.0.0", "18.9.0"], &["19.0.0"]);
        check("~18.17", &["18.17.9"], &["18.18.0"]);
        check("~18", &["18.20.0"], &["19.0.0"]);
        check(">=18 <21", &["18.0.0", "20.9.0"], &["21.0.0", "17.9.9"]);
        check(">= 18.0.0 < 21", &["18.0.0"], &["21.0.1"]);
        check("18 || >=20", &["18.5.0", "22.0.0"], &["19.0.0"]);
        check("16 - 18", &["16.0.0", "18.20.0"], &["19.0.0", "15.9.0"]);
        check(">22", &["23.0.0"], &["22.5.0"]);
        check("<=20", &["20.9.0"], &["21.0.0"]);
        check("v22.1.0", &["22.1.0"], &["22.1.1"]);
        check("*", &["1.0.0"], &[]);
        check("", &["1.0.0"], &[]);
        check("=18", &["18.3.0"], &["17.0.0"]);
    }

    #[test]
    fn ranges_of_python_are_understood() {
        let check = |range, fitting: &[&str], others: &[&str]| {
            check(Dialect::Python, range, fitting, others);
        };
        check(">=3.9,<3.12", &["3.9.0", "3.11.7"], &["3.12.0", "3.8.18"]);
        check("3.11", &["3.11.0", "3.11.7"], &["3.1.1", "3.12.1"]);
        check("3.9.1", &["3.9.1"], &["3.9.18"]);
        check("==3.11.*", &["3.11.2"], &["3.12.0"]);
        check("~=3.9", &["3.9.0", "3.13.0"], &["4.0.0", "3.8.0"]);
        check("~=3.9.2", &["3.9.18"], &["3.10.0", "3.9.1"]);
        check("^3.11", &["3.11.0", "3.13.0"], &["4.0.0", "3.10.0"]);
        check("~3.9", &["3.9.5"], &["3.10.0"]);
        check(">=3.8, !=3.9.*", &["3.8.1", "3.10.0"], &["3.9.7"]);
        check("<=3.11", &["3.11"], &["3.11.7"]);
        check("~2.7 || ^3.6", &["2.7.18", "3.9.0"], &["2.6.0"]);
        check("3.11|3.9.18", &["3.9.18", "3.11.1"], &["3.9.17"]);
    }

    #[test]
    fn ranges_of_ruby_and_composer_are_understood() {
        check(Dialect::Ruby, "~> 3.1", &["3.1.0", "3.9.0"], &["4.0.0", "3.0.9"]);
        check(Dialect::Ruby, "~> 3.1.2", &["3.1.4"], &["3.2.0", "3.1.1"]);
        check(Dialect::Ruby, ">= 2.7, < 3.3", &["3.2.2"], &["3.3.0"]);
        check(Dialect::Ruby, "3.1", &["3.1.2"], &["3.2.0"]);
        check(Dialect::Composer, "^8.1", &["8.1.0", "8.3.2"], &["9.0.0", "8.0.9"]);
        check(Dialect::Composer, "~8.1", &["8.9.0"], &["9.0.0"]);
        check(Dialect::Composer, "~8.1.0", &["8.1.9"], &["8.2.0"]);
        check(Dialect::Composer, ">=7.4 <8.3", &["8.2.0"], &["8.3.0"]);
        check(Dialect::Composer, "8.*|7.4.*", &["8.0.0", "7.4.3"], &["7.3.0"]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["lts/*", "system", ">", "jruby-9.4", "~~1", "latest"] {
            assert_eq!(VersionRange::parse(Dialect::Npm, text), None, "{text}");
        }
        assert_eq!(VersionRange::parse(Dialect::Npm, &"1 ".repeat(TEXT_CHARS_MAX)), None);
        assert_eq!(ProgramVersion::parse("3.13.0rc1").unwrap().to_string(), "3.13.0");
        assert_eq!(ProgramVersion::parse("x"), None);
    }
}
