<?php
// Made by Cortex: what a web server does in front of PHP. What exists is served, unless it is kept
// back; everything else goes to index.php.
if ((static function (): bool {
    $lists = json_decode('@LISTS@', true);
    $root = rtrim($_SERVER['DOCUMENT_ROOT'], '/');
    $is_project = realpath($root) === __DIR__;
    $gone = static function (): never {
        http_response_code(404);
        header('Content-Type: text/plain; charset=utf-8');
        exit("Not found\n");
    };
    $fits = static function (string $name, array $patterns): bool {
        foreach ($patterns as $pattern) {
            if (fnmatch($pattern, $name)) {
                return true;
            }
        }
        return false;
    };
    $end = static function (string $name): string {
        $dot = strrpos($name, '.');
        return $dot === false ? '' : substr($name, $dot + 1);
    };
    $is_directory_kept = static function (array $names) use ($lists, $is_project, $fits): bool {
        foreach (array_map('strtolower', $names) as $name) {
            if ($fits($name, $lists['directories'])
                || $is_project && $fits($name, $lists['project_directories'])) {
                return true;
            }
        }
        return false;
    };
    $is_file_kept = static function (array $names, string $file) use ($lists, $is_project, $fits, $end): bool {
        $file = strtolower($file);
        $in_packages = $is_project && in_array($lists['packages'], array_map('strtolower', $names), true);
        if ($in_packages && !in_array($end($file), $lists['assets'], true)) {
            return true;
        }
        if (in_array($end($file), $lists['packed'], true)) {
            $file = substr($file, 0, (int) strrpos($file, '.'));
        }
        if (in_array($end($file), $lists['pages'], true)) {
            return false;
        }
        $is_source = static function (string $mark) use ($file): bool {
            return str_contains($file, $mark);
        };
        return $fits($file, $lists['files'])
            || !in_array($end($file), $lists['assets'], true)
                && array_filter($lists['sources'], $is_source) !== []
            || $is_project
                && ($fits($file, $lists['project_files']) || $fits($file, $lists['project_directories']));
    };
    // Of one .htaccess: whether it lets people in, for the directory and for some names of files.
    $read = static function (string $directory): array {
        $text = @file_get_contents("$directory/.htaccess", false, null, 0, 65536);
        $scopes = $sections = [];
        $is_front = false;
        foreach (preg_split('/\R/', preg_replace('/\\\\\R/', ' ', (string) $text)) as $line) {
            $line = trim($line);
            if (preg_match('#^</#', $line)) {
                array_pop($sections);
                continue;
            }
            if (preg_match('/^<(\w+)\s*(.*?)\s*>/', $line, $section)) {
                $sections[] = [strtolower($section[1]), $section[2]];
                continue;
            }
            if (preg_match('/^RewriteRule\s.*index\.php/i', $line)) {
                $is_front = true;
            }
            $scope = '';
            foreach ($sections as [$kind, $of]) {
                if ($kind === 'files' || $kind === 'filesmatch') {
                    $is_regex = $kind === 'filesmatch' || str_starts_with($of, '~');
                    $scope = ($is_regex ? '~' : '') . trim(ltrim($of, '~ '), '"\'');
                } elseif (!in_array($kind, ['ifmodule', 'ifversion', 'ifdefine', 'requireall', 'requireany'], true)
                    && !($kind === 'limit' && preg_match('/\bGET\b/i', $of))) {
                    continue 2;
                }
            }
            $words = strtolower(preg_replace('/\s+/', ' ', preg_replace('/\s*,\s*/', ',', $line)));
            foreach (['require', 'order', 'deny', 'allow'] as $kind) {
                if (str_starts_with($words, "$kind ")) {
                    $scopes[$scope][$kind][] = substr($words, strlen($kind) + 1);
                }
            }
        }
        foreach ($scopes as &$said) {
            $said += ['require' => [], 'order' => [], 'deny' => [], 'allow' => []];
            if ($said['require'] !== []) {
                $said = in_array('all granted', $said['require'], true);
            } else {
                $is_open = in_array('from all', $said['allow'], true);
                $is_shut = in_array('from all', $said['deny'], true);
                $said = in_array('allow,deny', $said['order'], true)
                    ? $is_open && !$is_shut
                    : $is_open || !$is_shut;
            }
        }
        unset($said);
        return [$scopes, $is_front];
    };
    $asked = explode('?', $_SERVER['REQUEST_URI'], 2)[0];
    $path = rawurldecode($asked);
    $names = array_values(array_filter(explode('/', $path), static function (string $name): bool {
        return $name !== '' && $name !== '.';
    }));
    foreach ($names as $name) {
        if ($name[0] === '.' && $name !== $lists['well_known'] || str_contains($name, "\0")) {
            $gone();
        }
    }
    // As far as there is anything of that name.
    [$at, $depth, $file] = [$root, 0, null];
    $htaccess = [$read($root)];
    foreach ($names as $name) {
        if (is_dir("$at/$name")) {
            $at .= "/$name";
            $depth++;
            $htaccess[] = $read($at);
            continue;
        }
        $file = is_file("$at/$name") ? $name : null;
        break;
    }
    $directories = array_slice($names, 0, $depth);
    $url = $depth === 0 ? '' : '/' . implode('/', $directories);
    $rest = array_slice($names, $depth + ($file === null ? 0 : 1));
    $has_slash = str_ends_with($path, '/');
    $let_in = static function (?string $file) use ($htaccess): bool {
        [$directory, $named] = [true, null];
        foreach ($htaccess as [$scopes]) {
            foreach ($scopes as $scope => $opens) {
                $scope = (string) $scope;
                if ($scope === '') {
                    $directory = $opens;
                } elseif ($file !== null) {
                    $regex = '`' . str_replace('`', '\\`', substr($scope, 1)) . '`';
                    $fits = $scope[0] === '~' ? @preg_match($regex, $file) === 1 : fnmatch($scope, $file);
                    $named = $fits ? $opens : $named;
                }
            }
        }
        return $named ?? $directory;
    };
    $run = static function (string $directory, string $url, string $file, ?string $info, bool $is_moved) use ($root, $path): bool {
        $script = "$url/$file";
        unset($_SERVER['PATH_INFO'], $_SERVER['ORIG_PATH_INFO'], $_SERVER['PATH_TRANSLATED']);
        if ($info !== null) {
            $_SERVER['PATH_INFO'] = $info;
            $_SERVER['PATH_TRANSLATED'] = $root . $info;
        }
        if ($is_moved) {
            $_SERVER['REDIRECT_URL'] = $path;
            $_SERVER['REDIRECT_STATUS'] = '200';
        }
        $_SERVER['SCRIPT_NAME'] = $script;
        $_SERVER['PHP_SELF'] = $script . $info;
        $_SERVER['SCRIPT_FILENAME'] = "$directory/$file";
        // The router in front says it, and nobody else can. Programs name cookies and build links by
        // these, so that they must not differ from instance to instance.
        $is_https = ($_SERVER['HTTP_X_FORWARDED_PROTO'] ?? '') === 'https';
        if ($is_https) {
            $_SERVER['HTTPS'] = 'on';
        }
        $public = parse_url('http://' . ($_SERVER['HTTP_HOST'] ?? ''));
        $_SERVER['SERVER_NAME'] = $public['host'] ?? 'localhost';
        $_SERVER['SERVER_PORT'] = (string) ($public['port'] ?? ($is_https ? 443 : 80));
        chdir($directory);
        return true;
    };
    if (!$let_in($file) || $is_directory_kept($directories)) {
        $gone();
    }
    if ($file !== null) {
        if ($is_file_kept($directories, $file)) {
            $gone();
        }
        $info = ($rest === [] ? '' : '/' . implode('/', $rest)) . ($has_slash ? '/' : '');
        if ($end(strtolower($file)) === 'php') {
            return $run($at, $url, $file, $info === '' ? null : $info, false);
        }
        if ($info === '') {
            return false;
        }
    } elseif ($rest === []) {
        foreach (['index.php', 'index.html'] as $index) {
            if (!is_file("$at/$index") || !$let_in($index)) {
                continue;
            }
            if (!$has_slash) {
                $query = explode('?', $_SERVER['REQUEST_URI'], 2)[1] ?? null;
                $to = '/' . trim($asked, '/') . '/' . ($query === null ? '' : "?$query");
                header("Location: $to", true, in_array($_SERVER['REQUEST_METHOD'], ['GET', 'HEAD'], true) ? 301 : 308);
                exit;
            }
            return $index === 'index.php' && $run($at, $url, $index, null, false);
        }
    }
    // The nearest directory that has such a page for all that it has not, else the root.
    for ($level = $depth; $level > 0; $level--) {
        $names = array_slice($directories, 0, $level);
        $place = implode('/', $names);
        if ($htaccess[$level][1] && is_file("$root/$place/index.php")) {
            return $run("$root/$place", "/$place", 'index.php', null, true);
        }
    }
    if (!is_file("$root/index.php")) {
        $gone();
    }
    return $run($root, '', 'index.php', null, true);
})()) {
    require $_SERVER['SCRIPT_FILENAME'];
} else {
    return false;
}
