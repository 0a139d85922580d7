/* SPDX-License-Identifier: Apache-2.0 */
#include "maps.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PF_EXITING_FLAG = 0x4 }; /* include/linux/sched.h: getting shut down */

bool gms_inode_of(int fd, struct gms_inode *ret_inode)
{
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        return false;
    *ret_inode = (struct gms_inode){about.st_dev, about.st_ino};
    return true;
}

/* "start-end perms offset major:minor inode path" */
static bool line_matches(const char *line, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    char permissions[5];
    unsigned int device_major, device_minor;
    unsigned long inode;
    if (sscanf(line, "%*x-%*x %4s %*x %x:%x %lu", permissions, &device_major, &device_minor, &inode) != 4)
        return false;
    if (access == GMS_MAPS_WRITABLE && permissions[1] != 'w')
        return false;
    for (size_t i = 0; i < count; i++)
        if (inodes[i].inode == inode && major(inodes[i].device) == device_major &&
            minor(inodes[i].device) == device_minor)
            return true;
    return false;
}

bool gms_maps_has(pid_t pid, const struct gms_inode *inodes, size_t count, enum gms_maps_access access)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    while (!found && getline(&line, &capacity, stream) > 0)
        found = line_matches(line, inodes, count, access);
    free(line);
    fclose(stream);
    return found;
}

size_t gms_maps_each(const struct gms_inode *inodes, size_t count, enum gms_maps_access access,
                     bool (*found)(void *context, pid_t pid), void *context)
{
    size_t total = 0;
    DIR *directory = count > 0 ? opendir("/proc") : NULL;
    if (directory == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == getpid() || !gms_maps_has(pid, inodes, count, access))
            continue;
        total++;
        if (!found(context, pid))
            break;
    }
    closedir(directory);
    return total;
}

/* Field 9 of stat; the command in field 2 may hold anything, so count from its closing parenthesis. */
static bool thread_exiting(pid_t pid, const char *thread)
{
    char path[96], text[1024];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, thread);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return errno == ENOENT || errno == ESRCH; /* gone is more than exiting; unreadable is not */
    size_t got = fread(text, 1, sizeof text - 1, stream);
    bool failed = ferror(stream) != 0;
    fclose(stream);
    text[got] = '\0';
    if (failed || got == 0)
        return errno == ESRCH;
    const char *rest = strrchr(text, ')');
    unsigned int flags = 0;
    if (rest == NULL || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
        return false;
    return (flags & PF_EXITING_FLAG) != 0;
}

bool gms_threads_exiting(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return errno == ENOENT || errno == ESRCH;
    bool exiting = true;
    for (struct dirent *entry; exiting && (entry = readdir(directory)) != NULL;)
        if (isdigit((unsigned char)entry->d_name[0]))
            exiting = thread_exiting(pid, entry->d_name);
    closedir(directory);
    return exiting;
}
